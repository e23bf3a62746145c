"""A config that names no models gets those that suit the device, and the log names them."""

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from ark_jax import config
from ark_jax.demo import models
from ark_jax.recipes.core import models as run_models


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ARK_CACHE", str(tmp_path))
    return tmp_path


def named(platform: str, monkeypatch, **paths: str) -> ConfigDict:
    """The default config on a platform, with paths of models by role."""
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    c = config.ark()
    for role, path in paths.items():
        c[role].path = path
    run_models.suit_device(c)
    return c


def test_a_cpu_defaults_to_the_models_of_the_demo(cache, monkeypatch, capsys):
    c = named("cpu", monkeypatch)
    assert c.retriever.path == str(cache / "models" / "all-minilm-l6-v2")
    assert c.generator.path == str(cache / "models" / "smollm2-135m-instruct")
    retriever, generator = capsys.readouterr().out.splitlines()
    assert retriever == (
        "retriever: all-MiniLM-L6-v2, since this run has no accelerator; "
        "--config.retriever.path=... names another"
    )
    assert generator.startswith("generator: SmolLM2-135M-Instruct, since")
    assert not any(cache.iterdir())


def test_an_accelerator_defaults_to_models_of_the_hub(cache, monkeypatch, capsys):
    c = named("cuda", monkeypatch)
    assert c.retriever.path == "Qwen/Qwen3-Embedding-0.6B"
    assert c.generator.path == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert capsys.readouterr().out.count("since this run has an accelerator") == 2


@pytest.mark.parametrize(("platform", "types"), [("cpu", "float32"), ("tpu", "bfloat16")])
def test_default_types_follow_the_device(platform, types, cache, monkeypatch):
    c = named(platform, monkeypatch)
    assert (c.retriever.compute, c.generator.dtype) == (types, types)
    assert c.retriever.attention == "auto"  # chosen by shapes, without effect on results
    c.generator.dtype = "float16"
    run_models.suit_device(c)
    assert c.generator.dtype == "float16"


def test_a_named_model_is_kept(cache, monkeypatch, capsys):
    c = named("cpu", monkeypatch, retriever="own/model")
    assert c.retriever.path == "own/model"
    assert capsys.readouterr().out.startswith("generator: ")


def test_a_config_of_another_recipe_is_unchanged():
    c = ConfigDict({"recipe": "words", "retriever": "a word"})
    run_models.suit_device(c)
    assert c.to_dict() == {"recipe": "words", "retriever": "a word"}


def test_only_the_models_of_the_demo_are_fetched(cache, monkeypatch):
    folders = []
    monkeypatch.setattr(models, "prepare", lambda model, root: folders.append((model.name, root)))
    folder = cache / "models" / "all-minilm-l6-v2"
    run_models.fetch_demo_models(["", "own/model", str(cache), str(folder)])
    assert folders == [("all-minilm-l6-v2", cache)]
