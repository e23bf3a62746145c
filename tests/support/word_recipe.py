"""A recipe of a few lines over a text file, and a config for it."""

import time
from pathlib import Path

from ml_collections import ConfigDict

from ark_jax.pipeline.fingerprints import file_digest
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Stage
from ark_jax.recipes.common.report import with_report

SWEEPS = {"case": {"exact": {"fold_case": False}}}


def split(context, folder):
    text = Path(context.config.text).read_text()
    words = (text.lower() if context.config.fold_case else text).split()
    (folder / "words.txt").write_text("\n".join(words))
    return {"words": len(words)}


def count(context, folder):
    words = (context / "split" / "words.txt").read_text().split()
    while (Path(context.config.text).parent / "hold").exists():
        (folder / "progress").touch()
        time.sleep(0.01)
    (folder / "distinct.txt").write_text("\n".join(sorted(set(words))))
    return {"distinct": len(set(words)), "resumed": (folder / "progress").exists()}


def stages(config):
    text = lambda config: {"text": file_digest(Path(config.text))}
    return with_report(
        [Stage("split", (), ("fold_case",), split, text), Stage("count", ("split",), (), count)],
        title="Words",
    )


def get_config(words=""):
    return ConfigDict({"recipe": "support.word_recipe", "text": "", "fold_case": True})


RECIPE = Recipe("words", stages, metrics={"distinct": "distinct words"}, headline="distinct")
