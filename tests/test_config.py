"""Names that config files use, and flags."""

import sys
from unittest import mock

import pytest
from absl import flags
from ml_collections import config_flags

from ark_jax import config
from ark_jax.recipes.ark.recipe import check_ark


def with_flags(*arguments: str):
    """The default config under command-line flags."""
    values, argv = flags.FlagValues(), ["ark-jax", *arguments]
    with mock.patch.object(sys, "argv", argv):  # ml_collections looks there for fields
        holder = config_flags.DEFINE_config_dict("config", config.ark(), flag_values=values)
        values(argv)
    return holder.value


def test_the_config_module_exports_every_name():
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
