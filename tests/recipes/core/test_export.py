"""What an export holds: stages pass float32 on, the export has the types of its base."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import tiny

from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder
from ark_jax.recipes.core.export import copy_model
from ark_jax.recipes.core.models import MASTER


@pytest.fixture
def base(tmp_path):
    """A retriever in bfloat16 in several files."""
    changes = {"dtype": "bfloat16"}
    folder = tmp_path / "base"
    tiny.write(folder, "bert", tokenizer="cls", files=2, dtype="bfloat16", changes=changes)
    return tiny.sentence_transformer(folder, pooling="mean", max_seq_length=48)


def tensors(folder) -> dict[str, np.ndarray]:
    files = folder.rglob("*.safetensors")
    return {str(name): x for file in files for name, x in load_file(file).items()}


@pytest.mark.parametrize("kind", ["retriever", "towers", "scorer"])
@pytest.mark.parametrize("dtype", ["", "float32"])
def test_an_export_has_the_types_of_its_base_or_that_which_is_asked(
    kind, dtype, base, tmp_path, mesh
):
    retriever = Retriever.from_pretrained(base)
    retriever.model.blocks.q.set_value(retriever.model.blocks.q[...] + 2e-4)
    other = Retriever.from_pretrained(base)
    model = {
        "retriever": lambda: retriever,
        "towers": lambda: DualEncoder(retriever, other),
        "scorer": lambda: CrossEncoder.from_retriever(retriever).with_head("linear"),
    }[kind]()
    stage, export = tmp_path / "stage", tmp_path / "export"
    model.save_pretrained(stage, dtype=MASTER)
    copy_model(stage, export, str(base), dtype)
    name = next(name for name in tensors(stage) if name.endswith("0.attention.self.query.weight"))
    kept, given = tensors(stage), tensors(export)
    assert {str(x.dtype) for x in kept.values()} - {"int64"} == {"float32"}
    assert given.keys() == kept.keys()
    assert str(given[name].dtype) == (dtype or "bfloat16")
    np.testing.assert_array_equal(given[name], kept[name].astype(given[name].dtype))
    configs = [json.loads(path.read_text()) for path in export.rglob("config.json")]
    named = {config["dtype"] for config in configs if "model_type" in config}
    assert named == {dtype or "bfloat16"}
