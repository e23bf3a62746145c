"""A fifth method takes a file of config and stages, and one of its maths."""

import json

import numpy as np
import pytest
from support import query_map, world

from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.runtime.log import Metrics
from ark_jax.train import fit


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    root = world.make_world(tmp_path_factory.mktemp("fifth"))
    config = query_map.get_config()
    config.data.path, config.data.held_out_documents = str(root / "corpus"), world.HELD_OUT
    config.retriever.path, config.mesh = str(root / "retriever"), (1, 1, 1)
    config.retriever.compute = "float32"
    return config


def run(config, workdir) -> None:
    context = Context(config, workdir, Metrics(workdir / "metrics.jsonl"))
    engine.run(query_map.stages(config), context)


def stale(config, workdir) -> list[str]:
    stages = query_map.stages(config)
    return [x.stage for x in examine(stages, config, workdir) if x.state != "done"]


def test_a_new_method_learns_and_resumes_and_reruns_what_changed(config, tmp_path, monkeypatch):
    run(config, tmp_path / "whole")
    counts = read_manifest(tmp_path / "whole" / "train")["counts"]
    assert counts["steps"] == 20 and counts["last_loss"] < 0.8 * counts["first_loss"]
    recall = json.loads((tmp_path / "whole" / "evaluate" / "recall.json").read_text())
    assert recall.keys() == {"base", "mapped"}

    made, step = [], fit.train_step

    def killed(*arguments, **options):
        made.append(step(*arguments, **options))
        if len(made) == 12:
            raise KeyboardInterrupt
        return made[-1]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fit, "train_step", killed)
        run(config, tmp_path / "killed")
    run(config, tmp_path / "killed")
    maps = [np.load(tmp_path / name / "train" / "map.npy") for name in ("whole", "killed")]
    np.testing.assert_array_equal(*maps)

    changed = config.copy_and_resolve_references()
    changed.train.temperature = 0.1
    assert stale(changed, tmp_path / "whole") == ["train", "evaluate", "report"]
    changed = config.copy_and_resolve_references()
    changed.k, changed.train.save_every = 3, 7
    assert stale(changed, tmp_path / "whole") == ["evaluate", "report"]
