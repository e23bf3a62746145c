"""Metrics of found paths, and the split into frequent and rare paths."""

import pytest

from ark_jax.graph.beam import FoundPath
from ark_jax.graph.steps import GoldPath, Steps
from ark_jax.graph.triples import Triples
from ark_jax.recipes.star.data import PathQuestion
from ark_jax.recipes.star.search import (
    HEAD,
    STANDARD,
    TAIL,
    measure,
    measure_biases,
    parse_metric,
    rarity_groups,
)

TRIPLES = [
    ("Kismet", "directed_by", "Dieterle"),
    ("Salome", "directed_by", "Dieterle"),
    ("Kismet", "starred", "Dietrich"),
    ("Kismet", "starred", "Colman"),
    ("Kismet", "written_by", "Dieterle"),
    ("Dieterle", "knew", "Colman"),
]
DIRECTED, STARRED, WRITTEN, KNEW = range(4)


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps(Triples.from_triples(TRIPLES), inverse=True)


def question(steps: Steps, *answers: str, absent: int = 0) -> PathQuestion:
    nodes = steps.graph.nodes
    ids = tuple(sorted(node for answer in answers for node in nodes.find(answer)))
    return PathQuestion("q", "?", "", answers, (nodes.find("Kismet")[0],), ids, absent)


def found_paths(steps: Steps, *paths: tuple[int, ...]) -> list[FoundPath]:
    topic = steps.graph.nodes.find("Kismet")[0]
    return [FoundPath(topic, path, -float(i)) for i, path in enumerate(paths)]


def gold(steps: Steps, *paths: tuple[int, ...]) -> list[GoldPath]:
    return [GoldPath(path.topic, path.steps, 1, 1) for path in found_paths(steps, *paths)]


def test_metrics_of_several_paths_equal_values_computed_by_hand(steps):
    star_question = question(steps, "Dietrich", "Colman", absent=1)
    paths = found_paths(steps, (DIRECTED,), (DIRECTED, KNEW), (STARRED,))
    values = measure(steps, star_question, gold(steps, (STARRED,)), paths, (*STANDARD, "detour@2"))
    assert values == {
        "hit@1": 0.0,
        "hit@3": 1.0,
        "path_hit@1": 0.0,
        "detour@1": 0.0,
        "detour@2": 1.0,  # Colman by who Dieterle knew
        "f1": 0.0,
        "answer_coverage": pytest.approx(2 / 3),
    }


def test_f1_is_computed_for_the_first_path(steps):
    star_question = question(steps, "Dietrich")
    values = measure(
        steps, star_question, gold(steps, (STARRED,)), found_paths(steps, (STARRED,)), ("f1",)
    )
    assert values["f1"] == pytest.approx(2 / 3)


def test_a_question_without_paths_is_a_miss(steps):
    assert set(measure(steps, question(steps, "Colman"), (), (), STANDARD).values()) == {0.0}


@pytest.mark.parametrize("name", ["hit", "hit@0", "f1@1", "recall@5", "hit@²"])
def test_unknown_metrics_are_refused(name):
    with pytest.raises(ValueError, match="is none of f1, answer_coverage"):
        parse_metric(name)


def test_rare_paths_are_the_least_frequent_fifth_and_unseen_ones(steps):
    """Counts are 5, 4, 3, 2, 1: one path of five is rare."""
    counts = {(DIRECTED,): 5, (STARRED,): 4, (WRITTEN,): 3, (KNEW,): 2, (DIRECTED, KNEW): 1}
    train = {
        f"{path}{i}": gold(steps, path) for path, count in counts.items() for i in range(count)
    }
    tested = {
        "common": gold(steps, (STARRED,)),
        "rare": gold(steps, (DIRECTED, KNEW)),
        "unseen": gold(steps, (STARRED, KNEW)),
        "both": gold(steps, (KNEW,), (DIRECTED, KNEW)),
    }
    questions = [PathQuestion(id, "?", "", (), (), (), 0) for id in (*tested, "unreachable")]
    assert rarity_groups(questions, tested, train) == {
        HEAD: {"common", "both"},
        TAIL: {"rare", "unseen"},
    }
    assert rarity_groups(questions[2:3], tested, train) == {HEAD: set(), TAIL: {"unseen"}}


# STAR, section 3.1: "we compute the cosine similarity between retrieved paths and user queries";
# section 5.3: Error is the retrieval failure rate, Shortcut and Long-Tail the errors of each bias,
# Union "the presence of either of these two biases".
@pytest.mark.parametrize(
    ("hit", "cosine", "rare", "similar_at", "expected"),
    [
        (1.0, 0.9, True, 0.0, (1, 1, 0, 0, 0, 0)),
        (0.0, 0.5, False, 0.0, (1, 0, 1, 1, 0, 1)),  # .5 is the mean of the shortest paths
        (0.0, 0.49, True, 0.0, (0, 1, 1, 0, 1, 1)),
        (0.0, 0.49, False, 0.4, (1, 0, 1, 1, 0, 1)),
        (0.0, None, False, 0.0, (0, 0, 1, 0, 0, 0)),
    ],
)
def test_an_error_is_a_shortcut_if_its_path_looks_like_the_question(
    hit, cosine, rare, similar_at, expected
):
    values = measure_biases(hit, cosine, [0.4, 0.6], similar_at, rare=rare)
    assert tuple(values) == ("similar", "rare", "wrong", "shortcut", "long_tail", "union")
    assert tuple(values.values()) == expected


def test_a_question_without_a_path_has_no_measure_of_similarity():
    assert measure_biases(0.0, 0.9, [], 0.0, rare=False)["shortcut"] == 0
