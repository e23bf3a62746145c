"""GPR and STAR train against negatives that a function of the user's own finds."""

import json

import pytest
from support import gpr_world, own_modules, star_world

from ark_jax.graph.levels import are_siblings
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.graphs import load_graph
from ark_jax.recipes.star.mine import load_lists, load_steps

MINERS = """
import numpy as np


def nearest(task):
    found = {}
    for id, query in task.query_vectors.items():
        pool = np.array(task.pools[id])
        found[id] = pool[np.argsort(-(task.chunk_vectors[pool] @ query), kind="stable")].tolist()
    return found


def last_words(task):
    longest = lambda index: task.texts[index]
    return {id: sorted(task.pools[id], key=longest)[-task.top :] for id in task.questions}


def outside(task):
    return {id: [len(task.texts)] for id in task.questions}


def nothing(task, depth):
    return {}
"""
FIELDS = {gpr_world: "train.negatives", star_world: "mine.by"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with own_modules.importable(tmp_path_factory.mktemp("own"), "my_miners", MINERS) as folder:
        yield folder


def run(world, root, miner: str, **changes) -> Context:
    """The training of a recipe on its tiny world, by this miner."""
    return own_modules.train(world, root, **{FIELDS[world]: f"my_miners:{miner}"} | changes)


def losses(context: Context) -> list[float]:
    lines = (context.workdir / "train" / "curve.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_gpr_trains_on_the_negatives_of_a_users_miner(own, tmp_path):
    context = run(gpr_world, tmp_path, "nearest", **{"train.epochs": 2})
    manifest = read_manifest(context.workdir / "train")
    assert "function train.negatives" in manifest["external"]
    rows = load_rows(context.workdir / "questions" / "questions.parquet")
    mined = load_rows(context.workdir / "train" / "mined.parquet")
    graph = load_graph(context)
    for question, one in zip(rows, mined, strict=True):
        asks_tail = question["side"] == "tail"
        assert one["rows"]
        assert not any(are_siblings(graph, question["row"], asks_tail, x) for x in one["rows"])
    curve = losses(context)
    third = len(curve) // 3
    assert 0 < sum(curve[-third:]) < sum(curve[:third])


def test_star_trains_on_the_negatives_of_a_users_miner(own, tmp_path):
    context = run(star_world, tmp_path, "last_words")
    manifest = read_manifest(context.workdir / "mine")
    assert "function mine.by" in manifest["external"]
    steps, lists = load_steps(context), load_lists(context)
    assert lists and all(0 < len(one.negatives) <= 3 for one in lists)
    for one in lists:
        ended = one.kinds.count("end")
        texts = [steps.text(one.topic, path) for path in one.candidates[1 + ended :]]
        assert texts == sorted(texts) and one.kinds[:ended] == ("end",) * ended
    curve = losses(context)
    third = len(curve) // 3
    assert 0 < sum(curve[-third:]) < sum(curve[:third])


@pytest.mark.parametrize("world", FIELDS)
def test_a_mined_index_outside_the_pool_is_refused(world, own, tmp_path):
    message = rf"config\.{FIELDS[world]}='my_miners:outside': .* which is not an index of its pool"
    with pytest.raises(ValueError, match=message):
        run(world, tmp_path, "outside")


@pytest.mark.parametrize("world", FIELDS)
def test_a_miner_with_wrong_parameters_is_refused_before_mining(world, own, tmp_path):
    with pytest.raises(ValueError, match=r"nothing'.* is called with \(task\)"):
        run(world, tmp_path, "nothing")
    assert not (tmp_path / "w").exists()
