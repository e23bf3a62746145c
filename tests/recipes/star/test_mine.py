"""The stages mine and train on a small graph, with a tiny retriever: what is stored."""

from pathlib import Path

import numpy as np
import pytest
from support import tiny

from ark_jax import schema
from ark_jax.graph.steps import END
from ark_jax.graph.triples import Triples
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import save_rows
from ark_jax.recipes.star.config import Star
from ark_jax.recipes.star.data import (
    PathQuestion,
    find_paths,
    load_paths,
    load_questions,
    load_steps,
)
from ark_jax.recipes.star.mine import PathList, load_lists, mine_lists
from ark_jax.recipes.star.train import load_tuned, train_scorer

PEOPLE = ("Ann", "Bob", "Cy", "Di")
FACTS = [
    *((f"film {i}", "directed_by", PEOPLE[i % 4]) for i in range(8)),
    *((f"film {i}", "starred", PEOPLE[(i + 1) % 3]) for i in range(8)),
    *((f"film {i}", "in_language", ("Thai", "Urdu")[i % 2]) for i in range(8)),
    *((person, "born_in", city) for person, city in zip(PEOPLE, ("Rome", "Oslo") * 2, strict=True)),
]


class NoMetrics:
    """Takes the rows of a run's progress."""

    def step(self, stage, row):
        pass

    def write(self, stage, **row):
        pass


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder of a tiny retriever."""
    path = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean")


def make_context(workdir: Path, base: Path, **changes) -> Context:
    """A run whose stages data and paths are done: questions about directors and their towns."""
    config = schema.to_config_dict(Star)
    config.retriever.path, config.mesh = str(base), (1, 1, 1)
    config.train.update({"batch": 8, "epochs": 2, "learning_rate": 1e-3, "save_every": 2})
    for name, value in changes.items():
        config[name.split("__")[0]][name.split("__")[1]] = value
    graph = Triples.from_triples(FACTS)
    node = graph.nodes.index
    questions = []
    for i in range(6):
        director = PEOPLE[i % 4]
        town = next(tail for head, _, tail in FACTS if head == director)
        for group, answer in (("1", director), ("2", town)):
            text = f"who made film {i}?" if group == "1" else f"the town of the maker of film {i}?"
            topics, answers = (node(f"film {i}"),), (node(answer),)
            questions.append(
                PathQuestion(f"{group}-{i}", text, group, (answer,), topics, answers, 0)
            )
    context = Context(config, workdir, NoMetrics())
    for stage in ("data", "paths", "mine", "train"):
        (workdir / stage).mkdir(parents=True)
    graph.save(workdir / "data" / "graph")
    save_rows(questions, workdir / "data" / "questions_train.parquet", PathQuestion)
    save_rows([], workdir / "data" / "questions_test.parquet", PathQuestion)
    find_paths(context, workdir / "paths")
    return context


def mined(workdir: Path, base: Path, **changes) -> tuple[list[PathList], dict, Context]:
    context = make_context(workdir, base, **changes)
    counts = mine_lists(context, workdir / "mine")
    return load_lists(context), counts, context


def test_the_counts_of_mining_describe_its_lists(tmp_path, base, mesh):
    lists, counts, context = mined(tmp_path, base)
    kinds = [kind for one in lists for kind in one.kinds]
    assert counts["lists"] == len(lists) > 20
    assert {f"negatives_{kind}": kinds.count(kind) for kind in set(kinds)} == {
        name: count for name, count in counts.items() if name.startswith("negatives_") and count
    }
    assert counts["questions_without_list"] == 0
    gold = load_paths(context, "train")
    assert counts["positive_paths"] + counts["other_shortest_paths"] == sum(map(len, gold.values()))
    for one in lists:
        assert len(one.negatives) == len(one.kinds) == len(one.counts) <= 7
        assert one.positive not in one.negatives
        whole = {path.steps for path in gold[one.question]}
        for step in one.negatives:
            wrong = (*one.prefix, step)
            assert not any((*path, END)[: len(wrong)] == wrong for path in whole)
        ends = 0 < one.taken < len(one.path) and one.prefix not in whole
        assert (END in one.negatives) == ends


def test_mining_is_deterministic(tmp_path, base, mesh):
    mined(tmp_path / "a", base, mine__by="base")
    mined(tmp_path / "b", base, mine__by="base")
    mined(tmp_path / "c", base)
    files = [(tmp_path / run / "mine" / "lists.parquet").read_bytes() for run in "abc"]
    assert files[0] == files[1] != files[2]


def test_the_hardest_negatives_are_kept_in_order(tmp_path, base, mesh):
    from ark_jax.models.retriever import Retriever

    settings = {"mine__negatives": 3, "mine__pool": "all"}
    few, _, context = mined(tmp_path / "few", base, mine__by="base", **settings)
    pool, _, _ = mined(tmp_path / "all", base, mine__by="previous", **settings)
    steps, retriever = load_steps(context), Retriever.from_pretrained(base)
    questions = {row.id: row.question for row in load_questions(context, "train")}
    for one, whole in zip(few, pool, strict=True):
        texts = [steps.text(one.topic, path) for path in whole.candidates[1:]]
        query = retriever.encode([questions[one.question]], kind="query")[0]
        scores = retriever.encode(texts, kind="document") @ query
        hard = [score for score, step in zip(scores, whole.negatives, strict=True) if step != END]
        assert (np.diff(hard) < 1e-6).all()
        assert one.negatives == whole.negatives[:3]
    assert max(len(one.negatives) for one in pool) > 7


def test_positives_can_be_all_shortest_paths_or_only_similar_ones(tmp_path, base, mesh):
    _, every, _ = mined(tmp_path / "all", base, mine__positives="all")
    _, similar, context = mined(tmp_path / "similar", base, mine__positives="similar")
    assert every["other_shortest_paths"] == 0
    assert similar["positive_paths"] < every["positive_paths"]
    # Every question keeps one path at least: some path is as similar as the mean.
    assert {one.question for one in load_lists(context)} == set(load_paths(context, "train"))
    _, weighted, _ = mined(tmp_path / "weighted", base)
    assert weighted == every


def test_mined_lists_do_not_depend_on_training_weights(tmp_path, base, mesh):
    lists, _, _ = mined(tmp_path / "a", base)
    again, _, _ = mined(tmp_path / "b", base, train__weights="both")
    assert lists == again


def test_nothing_to_learn_is_refused(tmp_path, base, mesh):
    """Of one relation, which leads from the answer to itself."""
    context = make_context(tmp_path, base, paths__inverse=False)
    graph = Triples.from_triples([("a", "r", "b"), ("b", "r", "b")])
    topic, answer = map(graph.nodes.index, "ab")
    graph.save(tmp_path / "data" / "graph")
    question = PathQuestion("q", "what is a?", "1", ("b",), (topic,), (answer,), 0)
    save_rows([question], tmp_path / "data" / "questions_train.parquet", PathQuestion)
    find_paths(context, tmp_path / "paths")
    with pytest.raises(ValueError, match=r"nothing to learn: .* config\.mine\.spare"):
        mine_lists(context, tmp_path / "mine")


@pytest.mark.parametrize("by", ["random", "base", "previous"])
def test_the_trained_scorer_can_be_loaded(tmp_path, base, by, mesh):
    settings = {"mine__negatives": 3, "mine__pool": "all", "train__epochs": 3}
    _, _, context = mined(tmp_path, base, mine__by=by, **settings)
    folder = tmp_path / "train"
    counts = train_scorer(context, folder)
    tuned = load_tuned(context)
    assert tuned.cfg.head == "cosine" and counts["lists"] == len(load_lists(context))
    assert counts["steps"] == 3 * -(-counts["lists"] // 8)
    assert counts["last_loss"] < counts["first_loss"]
    assert sorted(path.name for path in folder.glob("negatives_*.parquet")) == (
        ["negatives_2.parquet", "negatives_3.parquet"] if by == "previous" else []
    )
    first = train_scorer(context, folder)  # all steps are made: nothing changes
    assert first == counts and load_tuned(context).digest() == tuned.digest()
