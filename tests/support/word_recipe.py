"""A recipe of a few lines over a text file, and a config for it."""

import dataclasses
import time
from pathlib import Path

from ark_jax import schema
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.core.report import with_report

SWEEPS = {"case": {"exact": {"fold_case": False}}}


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a text."""

    recipe: str = schema.field("support.word_recipe", "This module.")
    text: str = schema.field("", "File of the text.", content="file")
    fold_case: bool = schema.field(True, "Whether words that differ by case alone are one.")


def split(context, folder):
    text = Path(context.config.text).read_text()
    words = (text.lower() if context.config.fold_case else text).split()
    (folder / "words.txt").write_text("\n".join(words))
    return {"words": len(words)}


def count(context, folder):
    words = (context / "split" / "words.txt").read_text().split()
    while (context.workdir.parent / "hold").exists():
        (folder / "progress").touch()
        time.sleep(0.01)
    (folder / "distinct.txt").write_text("\n".join(sorted(set(words))))
    return {"distinct": len(set(words)), "resumed": (folder / "progress").exists()}


def stages(config):
    return with_report([Stage("split", split), Stage("count", count)], title="Words")


def get_config(words=""):
    return schema.to_config_dict(Words)


RECIPE = Recipe(
    "words", stages, schema=Words, metrics={"distinct": "distinct words"}, headline="distinct"
)
