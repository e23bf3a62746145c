"""Training examples on disk, as ArrayRecord."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path

import tensorflow_datasets as tfds

from ark_jax.train.batches import Example


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
        """Yields the number of each example, and its fields as JSON."""
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
