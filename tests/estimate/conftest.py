"""A small run, planned before each stage; every device as fast as a given rate."""

import json
from types import SimpleNamespace

import jax
import pytest
from support.plans import RATE, settings
from support.world import EMBEDDED, HELD_OUT, TRAINING, make_world

from ark_jax import layout
from ark_jax.estimate import devices, plan
from ark_jax.llm import complete
from ark_jax.pipeline import engine
from ark_jax.recipes.ark.recipe import RECIPE, stages
from ark_jax.runtime.log import Metrics


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The device's speed is given."""
    monkeypatch.setattr(devices, "product_speed", lambda *_: RATE)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """That of the pipeline's tests with whole documents, so that questions suffice for a mean."""
    root = make_world(tmp_path_factory.mktemp("world"))
    for name, kept in (
        ("documents", lambda row: [row["id"]]),
        ("questions", lambda row: row["documents"]),
    ):
        rows = [json.loads(line) for line in (EMBEDDED / f"{name}.jsonl").read_text().splitlines()]
        rows = [row for row in rows if set(kept(row)) <= {*TRAINING, *HELD_OUT}]
        (root / "corpus" / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return root


@pytest.fixture(scope="module")
def run(world):
    """A run up to the rewritten questions: the config, the workdir and what was asked.

    Plans before the run and on its way are there too.
    """
    c, workdir, asked, plans = settings(world), world / "run", {}, {}
    with pytest.MonkeyPatch.context() as patch, jax.set_mesh(layout.make_mesh((1, 1, 1))):
        patch.setattr(devices, "product_speed", lambda *_: RATE)
        real = complete.complete
        patch.setattr(
            complete,
            "complete",
            lambda calls, *rest, **named: (
                asked.setdefault(calls[0].kind, calls) and real(calls, *rest, **named)
            ),
        )
        for stage in ("data", "candidates", "extract", "graph", "communities", "rewrite"):
            if stage in ("data", "communities", "rewrite"):
                plans[stage] = plan.estimate(RECIPE, c, workdir)
            context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
            engine.run(stages(c), context, only=stage)
        plans["after"] = plan.estimate(RECIPE, c, workdir)
    return SimpleNamespace(config=c, workdir=workdir, asked=asked, plans=plans, context=context)
