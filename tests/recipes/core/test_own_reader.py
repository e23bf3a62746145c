"""A function of the user's own answers from facts, as it does from passages."""

import pytest

from ark_jax.graph.triple_questions import TripleQuestion
from ark_jax.pipeline.recipe import load_recipe
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.gpr.config import gpr
from ark_jax.recipes.graphs import read_facts
from ark_jax.recipes.star.config import star
from ark_jax.runtime.log import Metrics

QUESTIONS = [
    TripleQuestion(id=f"q{i}", question=f"who keeps lamp {i}?", answers=("Ann",), entities=())
    for i in range(2)
]
FACTS = {"base": ["lamp | kept by | Tom"], "gpr": ["lamp | kept by | Ann", "Ann | of | Dunmere"]}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    lines = ("def keeper(question, facts):", "    return facts[0].split(' | ')[-1]")
    (folder / "my_fact_reader.py").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.parametrize("make", [gpr, star])
def test_a_users_reader_answers_from_the_facts_of_each_system(make, own):
    config = make()
    config.reader.backend, config.evaluate.read = "my_fact_reader:keeper", -1
    config.retriever.path = config.generator.path = config.data.path = str(own)
    load_recipe(config.recipe).check(config)
    context = Context(config, own, Metrics(own / "metrics.jsonl"))
    scores, counts = read_facts(context, [*FACTS], QUESTIONS, lambda system, _: FACTS[system], own)
    assert counts == {"unanswered": 0} and len(scores) == 4
    answers = {"base": "Tom", "gpr": "Ann"}
    assert all(row["answer"] == answers[system] for (system, _), row in scores.items())
    assert [scores[system, "q0"]["f1"] for system in FACTS] == [0, 1]


@pytest.mark.parametrize("recipe", ["gpr", "star"])
def test_a_missing_reader_function_is_refused(recipe, own):
    config = {"gpr": gpr, "star": star}[recipe]()
    config.reader.backend = "my_fact_reader:kepper"
    config.retriever.path = config.generator.path = config.data.path = str(own)
    with pytest.raises(
        ValueError, match=r"defines no 'kepper'; did you mean my_fact_reader:keeper"
    ):
        load_recipe(recipe).check(config)
