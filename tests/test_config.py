"""Names that config files use, flags, and the reference in configs/README.md."""

import sys
from unittest import mock

import pytest
from absl import flags
from ml_collections import config_flags
from support.paths import REPOSITORY

from ark_jax import config
from ark_jax.recipes.ark.checks import check_ark
from ark_jax.schema import reference

README = REPOSITORY / "configs" / "README.md"


def with_flags(*arguments: str):
    """The default config under command-line flags."""
    values, argv = flags.FlagValues(), ["ark-jax", *arguments]
    with mock.patch.object(sys, "argv", argv):  # ml_collections looks there for fields
        holder = config_flags.DEFINE_config_dict("config", config.ark(), flag_values=values)
        values(argv)
    return holder.value


def test_config_files_find_every_name():
    for name in config.__all__:
        assert getattr(config, name) is not None
    assert list(config.PRESETS) == ["default", "best", "paper", "official"]
    assert set(config.VARIANTS) == {"paper", "official", "gold", "local"}


def test_every_field_is_a_flag():
    c = with_flags(
        "--config.train.batch=32",
        "--config.graph.similarity=1",
        "--config.train.stages=(1,2)",
        '--config.evaluate.baselines=("bm25",)',
        "--config.train.learning_rates=(1,1e-5,0)",
        "--config.data.held_out_questions=(7,8)",
        "--config.train.merge_copies=false",
        "--config.llm.price=(0.3,2.5)",
    )
    check_ark(c)
    assert (c.train.batch, c.train.stages, c.train.merge_copies) == (32, (1, 2), False)
    assert c.graph.similarity == 1.0 and c.evaluate.baselines == ("bm25",)
    assert c.train.learning_rates == (1, 1e-5, 0) and c.data.held_out_questions == (7, 8)


@pytest.mark.parametrize(
    "field",
    [
        "train.temperature=0",
        "train.learning_rates=('a','b','c')",
        "train.warmup=nan",
        "train.clip=inf",
        "seed=-1",
        "mesh=(0,1,1)",
        "mesh=(-1,-1,1)",
        "data.chunk_overlap=512",
        "data.fold=(6,5)",
        "data.fold=(1,1)",
        "data.fold=(0,5)",
        "data.fold=(1,0)",
        "evaluate.metrics=('ndgc@10',)",
        "generator.attention=cudnn",
        "llm.backend=opeanai",
        "llm.price=(1,)",
    ],
)
def test_a_bad_flag_is_refused_before_any_work(field):
    section = field.partition("=")[0].rpartition(".")[0] or field.partition("=")[0]
    with pytest.raises(ValueError, match=rf"^config\.{section}"):
        check_ark(with_flags(f"--config.{field}"))


def test_a_new_field_of_a_config_file_is_refused():
    c = config.ark()
    c.train.bacth = 32
    with pytest.raises(ValueError, match=r"config\.train has no field 'bacth'; did you mean"):
        check_ark(c)


def test_the_reference_in_the_readme_is_current():
    text = README.read_text(encoding="utf-8")
    assert text == config.with_reference(text), "run: python -m ark_jax.config configs/README.md"


def test_the_reference_replaces_what_is_between_its_marks(tmp_path, capsys):
    path = tmp_path / "page.md"
    marked = [f"{begin}\nOUTDATED\n{end}" for begin, end in map(config.marks, config.SCHEMAS)]
    path.write_text("\n".join(["before", *marked, "after", ""]))
    config.main([str(path)])
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "OUTDATED" not in text and "`temperature`" in text and "`margins`" in text
    config.main([])
    printed = capsys.readouterr().out
    assert all(
        reference(schema) in printed and reference(schema) in text
        for schema in config.SCHEMAS.values()
    )
    with pytest.raises(ValueError, match="no <!-- fields of ark --> followed by"):
        config.with_reference("no marks")
