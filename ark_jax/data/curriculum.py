"""Training examples on disk (ArrayRecord) and their order: one integer is the position in a stage."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import grain
import numpy as np
import tensorflow_datasets as tfds


@dataclasses.dataclass(frozen=True)
class Example:
    """A question with the ids of its positives and hard negatives."""

    question: str
    documents: str  # a key equal for questions over the same documents
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


class Examples(tfds.core.GeneratorBasedBuilder):
    """The examples of one stage as a dataset that any tensorflow-datasets user can open; TensorFlow is not needed."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, examples: Sequence[Example], folder: Path):
        self._examples = examples
        super().__init__(data_dir=folder, file_format="array_record")

    def _info(self):
        # One field: the library serialises several in an order that changes from process to process, and a
        # resumed run must give the same bytes.
        features = tfds.features.FeaturesDict({"example": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, example in enumerate(self._examples):
            yield i, {"example": json.dumps(dataclasses.asdict(example), ensure_ascii=False)}


def write(examples: Sequence[Example], folder: Path) -> None:
    """Stores examples under `folder` as ArrayRecord.

    Raises:
        ValueError: no examples, or a folder that has some.
    """
    if not examples:
        raise ValueError(f"{folder}: no examples to store")
    if (folder / "examples").exists():
        raise ValueError(f"{folder} holds examples already; delete it or name another folder")
    tfds.disable_progress_bar()
    with contextlib.redirect_stdout(io.StringIO()):  # the library announces a download
        Examples(examples, folder).download_and_prepare()


def read(folder: Path) -> list[Example]:
    """What `write` stored, in the same order."""
    rows = tfds.builder_from_directory(folder / "examples" / "1.0.0").as_data_source("train")
    found = (json.loads(row["example"]) for row in rows)
    return [Example(x["question"], x["documents"], tuple(x["positives"]), tuple(x["negatives"])) for x in found]


def order(examples: Sequence[Example], *, epochs: int, seed: int, by: str) -> np.ndarray:
    """Indices of all epochs one after another, int64 `[epochs · n]`.

    by="question" shuffles questions. by="document" shuffles documents and, inside, their questions:
    questions over the same chunks share a batch, which encodes each chunk once.
    """
    out = []
    groups: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        groups.setdefault(example.documents if by == "document" else str(i), []).append(i)
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        keys = list(groups)
        for k in rng.permutation(len(keys)):
            out.append(rng.permutation(groups[keys[k]]))
    return np.concatenate(out) if out else np.zeros(0, np.int64)


def batches(indices: np.ndarray, size: int) -> grain.MapDataset:
    """The order cut into batches; the last one may be short, none is dropped."""
    return grain.MapDataset.source(indices).batch(size, drop_remainder=False)


def chunks_of(some: Sequence[Example], *, use_negatives: bool) -> list[str]:
    """The distinct chunks that examples are trained on."""
    return sorted({c for e in some for c in (*e.positives, *(e.negatives if use_negatives else ()))})


DENOMINATORS = ("own", "batch", "all")


def masks(some: Sequence[Example], *, use_negatives: bool, denominator: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct chunks of a batch, and who is whose positive and negative: bool `[b c]` twice.

    Stage 1 (`use_negatives` False): other questions' positives are the negatives, eq. 7. Later,
    denominator="own" contrasts with a question's own hard negatives only, eq. 8; "batch" with every chunk in
    the batch. A question's own positives, whichever question brought them in, are never its negatives, unless
    denominator="all": every chunk in the batch, a positive's siblings too, to measure what masking them is worth.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"config.train.denominator={denominator!r}: must be one of {', '.join(DENOMINATORS)}")
    chunks = chunks_of(some, use_negatives=use_negatives)
    index = {c: i for i, c in enumerate(chunks)}
    positive = np.zeros((len(some), len(chunks)), bool)
    negative = np.full_like(positive, denominator != "own" or not use_negatives)
    for row, example in enumerate(some):
        positive[row, [index[c] for c in example.positives]] = True
        if use_negatives:
            negative[row, [index[c] for c in example.negatives]] = True
    return chunks, positive, negative if denominator == "all" else negative & ~positive


def example_rows(positives: Mapping[str, Sequence[str]], negatives: Mapping[str, Sequence[str]],
                 documents: Mapping[str, str], originals: Mapping[str, str]) -> list[Example]:
    """One example per question that has positives, in the order of `positives`.

    `originals` names the chunk that a copy is replaced by (`negatives.originals`): no copy of a positive is then
    anybody's negative in its stead. Chunks it does not name stay as they are.
    """
    merged = lambda chunks: tuple(dict.fromkeys(originals.get(c, c) for c in chunks))
    return [Example(q, documents[q], merged(p), merged(negatives.get(q, ()))) for q, p in positives.items() if p]
