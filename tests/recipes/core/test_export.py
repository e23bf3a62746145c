"""What an export holds: stages pass float32 on, the export has the types of its base."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import pairs, tiny

from ark_jax.models.pairs import CrossEncoder
from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder
from ark_jax.recipes.core.models import MASTER, copy_model


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


def test_a_yes_no_decoder_is_exported_in_the_form_it_came_in(tmp_path, mesh):
    """Its folder names a prompt, a template and the tokens of its answers; weights are bfloat16."""
    base = pairs.write_yes_no(tmp_path / "plain")
    CrossEncoder.from_pretrained(base).save_pretrained(tmp_path / "base", dtype="bfloat16")
    base = pairs.write_logit_score(tmp_path / "base")
    scorer = CrossEncoder.from_pretrained(base)
    scorer.save_pretrained(tmp_path / "stage", dtype=MASTER)
    copy_model(tmp_path / "stage", tmp_path / "export", str(base), "")
    kept, given = tensors(base), tensors(tmp_path / "export")
    assert {str(x.dtype) for x in given.values()} == {"bfloat16"} and given.keys() == kept.keys()
    for name in kept:
        np.testing.assert_array_equal(given[name], kept[name])
    again = CrossEncoder.from_pretrained(tmp_path / "export")
    assert again.cfg == scorer.cfg and again.digest() == scorer.digest()
    for name in ("modules.json", "1_LogitScore/config.json", "config_sentence_transformers.json"):
        assert (tmp_path / "export" / name).read_bytes() == (base / name).read_bytes()
    assert again.prompts == {"instruction": "Find the board."}
