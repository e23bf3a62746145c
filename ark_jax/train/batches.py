"""Training examples: on disk (ArrayRecord), in a shuffled order, and as the masks of a batch."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import grain
import numpy as np
import tensorflow_datasets as tfds


@dataclasses.dataclass(frozen=True)
class Example:
    """A question with the ids of its positives and hard negatives."""

    question: str  # its id
    documents: str  # a key, equal for questions over the same documents
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    shares: tuple[float, ...] = ()  # of the positives, by a teacher; see `losses.distil`


class Examples(tfds.core.GeneratorBasedBuilder):
    """The examples of one stage as a dataset of tensorflow-datasets; TensorFlow is not needed."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, examples: Sequence[Example], folder: Path):
        self._examples = examples
        super().__init__(data_dir=folder, file_format="array_record")

    def _info(self):
        # One field: the library serialises several in an order that changes from process to
        # process, and a resumed run must give the same bytes.
        features = tfds.features.FeaturesDict({"example": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, example in enumerate(self._examples):
            fields = dataclasses.asdict(example)
            if not example.shares:
                del fields["shares"]
            yield i, {"example": json.dumps(fields, ensure_ascii=False)}


def write_examples(examples: Sequence[Example], folder: Path) -> None:
    """Stores examples under `folder` as ArrayRecord.

    Raises:
        ValueError: there are no examples to store, or the folder holds some already.
    """
    if not examples:
        raise ValueError(f"{folder}: no examples to store")
    if (folder / "examples").exists():
        raise ValueError(f"{folder} holds examples already; delete it or name another folder")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # the library announces a download
        Examples(examples, folder).download_and_prepare()


def read_examples(folder: Path) -> list[Example]:
    """The examples that `write_examples` stored, in the same order."""
    source = tfds.builder_from_directory(folder / "examples" / "1.0.0").as_data_source("train")
    examples = []
    for row in source:
        fields = json.loads(row["example"])
        lists = {name: tuple(x) for name, x in fields.items() if isinstance(x, list)}
        examples.append(Example(**fields | lists))
    return examples


def shuffled_order(examples: Sequence[Example], *, epochs: int, seed: int, by: str) -> np.ndarray:
    """Indices of the examples of all epochs, one epoch after another: int64 `[epochs · n]`.

    Args:
        by: "question" shuffles questions. "document" shuffles documents and, inside each, its
            questions. Questions over the same chunks then share a batch, which encodes each chunk
            once.
    """
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(example.documents if by == "document" else str(i), []).append(i)
    members = list(groups.values())
    order = [np.zeros(0, np.int64)]
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        order += [rng.permutation(members[k]) for k in rng.permutation(len(members))]
    return np.concatenate(order)


def split_batches(order: np.ndarray, size: int) -> grain.MapDataset:
    """Cuts an order into batches. The last batch may be short; no example is dropped."""
    return grain.MapDataset.source(order).batch(size, drop_remainder=False)


def distinct_chunks(examples: Sequence[Example], *, use_negatives: bool) -> list[str]:
    """The ids of the chunks that the examples are trained on, each once, sorted."""
    chunks = {chunk for example in examples for chunk in example.positives}
    if use_negatives:
        chunks |= {chunk for example in examples for chunk in example.negatives}
    return sorted(chunks)


DENOMINATORS = ("own", "batch", "all")


def pair_masks(
    examples: Sequence[Example], *, use_negatives: bool, denominator: str
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct chunks of a batch, and which are positive and negative for each question.

    Args:
        use_negatives: False in stage 1, where the positives of other questions are the negatives
            (eq. 7).
        denominator: with `use_negatives`, "own" contrasts a question with its own hard negatives
            (eq. 8), "batch" with every chunk of the batch. A question's positive is never its
            negative, whichever question brought it into the batch. "all" drops this rule: a
            positive's siblings are negatives too, which shows what masking them gains.

    Returns:
        Chunk ids, and the masks `positive` and `negative`, bool `[b c]`. Where examples have
        shares, `positive` has these, float32, and 0 elsewhere.

    Raises:
        ValueError: an unknown denominator.
    """
    if denominator not in DENOMINATORS:
        choices = ", ".join(DENOMINATORS)
        raise ValueError(f"config.train.denominator={denominator!r}: must be one of {choices}")
    chunks = distinct_chunks(examples, use_negatives=use_negatives)
    column = {chunk: i for i, chunk in enumerate(chunks)}
    shape = len(examples), len(chunks)
    positive = np.zeros(shape, np.float32 if any(e.shares for e in examples) else bool)
    negative = np.full(shape, denominator != "own" or not use_negatives)
    for row, example in enumerate(examples):
        positive[row, [column[chunk] for chunk in example.positives]] = example.shares or True
        if use_negatives:
            negative[row, [column[chunk] for chunk in example.negatives]] = True
    return chunks, positive, negative if denominator == "all" else negative & (positive == 0)


def make_examples(
    positives: Mapping[str, Collection[str]],
    negatives: Mapping[str, Collection[str]],
    documents: Mapping[str, str],
    originals: Mapping[str, str],
) -> list[Example]:
    """One example for each question that has positives, in the order of `positives`.

    Args:
        positives, negatives: question -> chunks.
        documents: question -> the key of its documents.
        originals: chunk -> the chunk that replaces it, for copies of other chunks. Without them a
            copy of a positive could be a negative of the same batch.
    """

    def replace_copies(chunks: Collection[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(originals.get(chunk, chunk) for chunk in chunks))

    return [
        Example(
            question,
            documents[question],
            replace_copies(chunks),
            replace_copies(negatives.get(question, ())),
        )
        for question, chunks in positives.items()
        if chunks
    ]
