"""Resolved configs as JSON, dotted field -> value.

`PYTHONPATH=.:tests python -m support.config_goldens` writes golden/config_*.json again.
"""

import json
from pathlib import Path
from unittest import mock

from support.paths import REPOSITORY

from ark_jax import config, schema
from ark_jax.demo import models
from ark_jax.recipes.ark.config import Ark
from ark_jax.schema import setting

FOLDER = Path(__file__).parent / "golden"
NAMES = (*config.PRESETS, "demo", "demo_documents")
COMMAND = "PYTHONPATH=.:tests python -m support.config_goldens"


def make_config(name: str):
    """A preset, or the demo's config with names in place of model folders."""
    if not name.startswith("demo"):
        return config.ark(name)
    folders = {"retriever": "RETRIEVER", "generator": "GENERATOR"}
    with mock.patch.object(models, "demo_models", lambda: folders):
        return config.demo("documents" if name == "demo_documents" else "")


def resolve(name: str) -> dict[str, object]:
    """Every field of a config, paths relative to the repository."""
    config = make_config(name)
    values = {declared.name: setting(config, declared.name) for declared in schema.fields(Ark)}
    prefix = f"{REPOSITORY}/"
    return {k: v.removeprefix(prefix) if isinstance(v, str) else v for k, v in values.items()}


def golden_path(name: str) -> Path:
    return FOLDER / f"config_{name}.json"


def read(name: str) -> dict[str, object]:
    return json.loads(golden_path(name).read_text(encoding="utf-8"))


def write(name: str) -> None:
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in resolve(name).items()]
    golden_path(name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    for name in NAMES:
        write(name)
