"""Lists of a right step and wrong ones: END, gold paths, spared steps, fills, weights, texts."""

import dataclasses

import numpy as np
import pytest

from ark_jax.graph.steps import END, GoldPath, PathLimits, Steps, shortest_paths
from ark_jax.graph.triples import Triples
from ark_jax.recipes.star.config import star
from ark_jax.recipes.star.mine import (
    ListMaker,
    ListRules,
    hard_positives,
    pair_lists,
    tail_weights,
    with_counts,
    with_order,
)

# The films of Ann's director are a and b; c is by another one.
FACTS = [
    ("a", "directed_by", "Ann"),
    ("b", "directed_by", "Ann"),
    ("c", "directed_by", "Bob"),
    ("a", "starred", "Cy"),
    ("b", "starred", "Cy"),
    ("b", "starred", "Di"),
    ("a", "in_language", "Thai"),
    ("c", "in_language", "Thai"),
    ("b", "in_language", "Urdu"),
    ("Ann", "born_in", "Rome"),
    ("Cy", "born_in", "Oslo"),
    ("Ann", "spouse", "Bob"),
]
STEPS = Steps(Triples.from_triples(FACTS), inverse=True, by="last")
NODE = {STEPS.graph.nodes.name(n): n for n in range(len(STEPS.graph.nodes))}
STEP = {name: step for step, name in enumerate(STEPS.names)}
BACK = "inverse of directed by"
RULES = ListRules(negatives=4, pool="graph", similar=True, k=6, spare=1.0, hops=3, seed=7)
# Any order will do as nearness: here by number, from the right step on.
NEAR = np.array([np.roll(np.arange(len(STEPS)), -1 - i)[:-1] for i in range(len(STEPS) + 1)])


def gold_of(topic: str, answers: list[str]) -> list[GoldPath]:
    nodes = [NODE[name] for name in answers]
    return shortest_paths(STEPS, [NODE[topic]], nodes, PathLimits())[0]


def path(topic: str, names: list[str]) -> GoldPath:
    steps = tuple(STEP[name] for name in names)
    return GoldPath(NODE[topic], steps, max(len(STEPS.reach(NODE[topic], steps)), 1), 1)


def lists_of(gold, answers, *, positives=None, id="q1", near=NEAR, **changes):
    maker = ListMaker(STEPS, near, dataclasses.replace(RULES, **changes))
    nodes = [NODE[name] for name in answers]
    return maker.lists_of(id, positives or gold, gold, nodes), maker.left_out


def names_of(one) -> list[str]:
    return [STEPS.names[step] if step != END else "end" for step in one.negatives]


COLLEAGUES = path("a", ["directed by", BACK, "in language"])  # -> Urdu: wrong too, as Thai of a


@pytest.mark.parametrize("pool", ["graph", "all"])
@pytest.mark.parametrize("similar", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 4])
def test_end_is_a_negative_at_every_inner_step_of_a_path(pool, similar, limit):
    """Without it beams end at once: 2-hop hit@1 was 0 in a prototype."""
    lists, _ = lists_of([COLLEAGUES], ["Di"], pool=pool, similar=similar)
    rules = dataclasses.replace(RULES, pool=pool, similar=similar)
    assert [one.taken for one in lists] == [0, 1, 2, 3]
    for one in lists:
        scores = [-9.0 if step == END else 1.0 for step in one.negatives]
        cut = with_order(one, scores, rules, limit)
        assert len(cut.negatives) == min(limit, len(one.negatives))
        assert (cut.negatives[0] == END) == (0 < one.taken < 3)
        assert one.negatives.count(END) == one.kinds.count("end") == int(0 < one.taken < 3)
    assert lists[-1].positive == END


def test_the_end_of_another_gold_path_is_not_a_negative():
    gold = [path("a", ["starred"]), path("a", ["starred", "born in"])]
    lists, left_out = lists_of(gold, [])
    by_path = {(one.path, one.taken): one for one in lists}
    assert END not in by_path[gold[1].steps, 1].negatives
    assert STEP["born in"] not in by_path[gold[0].steps, 1].negatives
    assert left_out["of_other_gold_paths"] == 2


def test_gold_paths_that_are_not_learned_are_not_negatives():
    gold = [path("a", ["starred"]), path("a", ["directed by"])]
    learned, _ = lists_of(gold, [], positives=gold[:1])
    assert {one.path for one in learned} == {gold[0].steps}
    assert STEP["directed by"] not in learned[0].negatives
    alone, _ = lists_of(gold[:1], [])
    assert STEP["directed by"] in alone[0].negatives


def test_gold_paths_of_another_topic_can_be_negatives():
    gold = [
        path("a", ["starred"]),
        dataclasses.replace(path("a", ["directed by"]), topic=NODE["b"]),
    ]
    lists, _ = lists_of(gold, [], positives=gold[:1])
    assert STEP["directed by"] in lists[0].negatives


def test_steps_that_lead_to_right_answers_are_not_negatives():
    gold = [path("a", ["starred"])]
    lists, left_out = lists_of(gold, ["Cy", "Thai"], spare=1.0)
    assert STEP["in language"] not in lists[0].negatives and left_out["spared"] >= 1
    spared_lists, _ = lists_of(gold, ["Cy"], spare=1.0)
    assert STEP["in language"] in spared_lists[0].negatives
    # From Ann, both films are led back to; only b is right, since a is asked about.
    film = path("Ann", [BACK, "starred"])
    half, _ = lists_of([film], ["b"], spare=1.0)
    spared, _ = lists_of([film], ["b"], spare=0.5)
    assert END in half[1].negatives and END not in spared[1].negatives


def test_the_topic_does_not_count_as_its_own_answer():
    there_and_back = path("a", ["directed by", "spouse"])
    lists, _ = lists_of([there_and_back], ["a", "b"], spare=1.0)
    negatives = lists[1].negatives
    assert negatives and STEP[BACK] not in negatives  # leads to a, which does not count, and to b


def test_frontier_steps_come_first_among_the_negatives():
    lists, _ = lists_of([COLLEAGUES], ["Di"])
    leaving = set(STEPS.options(STEPS.walk(NODE["a"], ())).tolist())
    first = with_order(lists[0], list(range(len(lists[0].negatives))), RULES, 4)
    kinds = list(first.kinds)
    assert kinds == ["frontier"] * (len(leaving) - 1) + ["near"] * (4 - len(leaving) + 1)
    assert {s for s, k in zip(first.negatives, kinds, strict=True) if k == "frontier"} < leaving
    assert set(lists[-1].kinds) == {"near"}  # nothing goes on after the last hop
    plain, _ = lists_of([COLLEAGUES], ["Di"], pool="all", k=2)
    assert set(plain[1].kinds) <= {"end", "near", "drawn"}
    assert plain[1].negatives[1:3] == tuple(NEAR[plain[1].positive][:2].tolist())


def test_a_wide_frontier_gives_its_nearest_step_first():
    right = path("a", ["directed by"])
    options = STEPS.options(STEPS.walk(NODE["a"], ())).tolist()
    lists, _ = lists_of([right], ["Ann"], k=1, negatives=1)
    near = next(step for step in NEAR[right.steps[0]] if step in options)
    assert len(options) == 3 and lists[0].negatives[0] == near


@pytest.mark.parametrize("similar", [True, False])
def test_lists_depend_only_on_seed_and_question(similar):
    make = lambda **changes: lists_of(
        [COLLEAGUES], ["Di"], similar=similar, pool="all", k=2, **changes
    )[0]
    assert make() == make()
    assert make(seed=8) != make()
    other = [dataclasses.replace(one, question="q1") for one in make(id="q2")]
    assert other != make()


def test_random_negatives_need_no_nearest_relations():
    nothing = np.zeros((len(STEPS) + 1, 0), np.int64)
    lists, _ = lists_of([COLLEAGUES], ["Di"], similar=False, near=nothing)
    assert set(lists[1].kinds) <= {"end", "frontier", "drawn"}


def test_a_list_without_negatives_is_left_out():
    steps = Steps(Triples.from_triples([("a", "r", "b"), ("c", "r", "d")]), inverse=False)
    rules = dataclasses.replace(RULES, similar=False)
    maker = ListMaker(steps, np.zeros((2, 0), np.int64), rules)
    topic, answer = map(steps.graph.nodes.index, "ab")
    gold = shortest_paths(steps, [topic], [answer], PathLimits())[0]
    lists = maker.lists_of("q", gold, gold, [answer])
    assert [one.taken for one in lists] == [1]  # END against r, which leads nowhere
    assert maker.left_out["lists_without_negative"] == 1


def test_counts_are_the_frequencies_of_positive_and_negative_paths():
    gold = [path("a", ["starred"])]
    lists = [one for id in ("q1", "q2") for one in lists_of(gold, ["Cy"], id=id)[0]]
    other = path("a", ["starred", "born in"])
    lists += lists_of([other], ["Oslo"], id="q3")[0]
    counted = with_counts(lists)
    assert [one.count for one in counted] == [2, 2, 2, 2, 1, 1, 1]
    wrong = [step for one in lists for step in one.candidates[1:]]
    for one in counted:
        assert one.counts == tuple(wrong.count(steps) for steps in one.candidates[1:])


def test_weights_fall_linearly_in_the_logarithm_of_the_count():
    weigh = lambda counts, low, high: tail_weights([np.array(counts)], low, high)[0]
    np.testing.assert_allclose(weigh([1, 10, 100, 10], 0.4, 3.0), [3.0, 1.7, 0.4, 1.7])
    np.testing.assert_allclose(weigh([5, 5], 0.5, 2.0), 1.0)
    np.testing.assert_allclose(weigh([5], 2.0, 3.0), 2.0)
    assert weigh([], 0.5, 2.0).shape == (0,)


def test_the_papers_weights_are_inverse_counts_scaled_to_a_range():
    """STAR, section 4.2: "the raw weight for a path is determined by its inverse occurrence count
    [...] scaled by the total number of paths in its respective class [...] subsequently scaled to
    a fixed range". With n paths and counts c: n / c from 5 to 0.025 becomes 2 to .5."""
    scale = star("paper").train.weight_scale
    counts = np.array([1, 2, 5, 20, 200])
    (weights,) = tail_weights([counts], 0.5, 2.0, scale=scale)
    raw = len(counts) / counts
    np.testing.assert_allclose(weights, 0.5 + 1.5 * (raw - 0.025) / (5 - 0.025))
    np.testing.assert_allclose(weights, [2, 1.25, 0.79, 0.57, 0.5], atol=0.005)
    (by_log,) = tail_weights([counts], 0.5, 2.0, scale=star().train.weight_scale)
    np.testing.assert_allclose(by_log, [2, 1.80, 1.54, 1.15, 0.5], atol=0.005)


def test_the_papers_weights_of_both_classes_share_one_range():
    """The same section: "scaled by the total number of paths in its respective class (P+ or P-)
    [...] prevents one class from disproportionately dominating the loss". A path that a share of
    its class is has the same weight in either class; by logarithms each class has all of the
    range."""
    classes = [np.array([1, 1, 2]), np.array([2, 2, 4, 4, 4, 12])]
    raw = np.concatenate([3 / classes[0], 6 / classes[1]])  # 3 3 1.5, 3 3 1.5 1.5 1.5 .5
    expected = 0.5 + 1.5 * (raw - 0.5) / (3 - 0.5)
    weights = tail_weights(classes, 0.5, 2.0, scale="inverse")
    np.testing.assert_allclose(np.concatenate(weights), expected)
    assert [len(part) for part in weights] == [3, 6]
    by_log = tail_weights(classes, 0.5, 2.0, scale="log")
    assert [(part.min(), part.max()) for part in by_log] == [(0.5, 2.0)] * 2


@pytest.mark.parametrize("weights", ["both", "positive", "none"])
def test_pair_lists_hold_the_texts_of_search_and_their_weights(weights):
    lists = with_counts(
        lists_of([COLLEAGUES], ["Di"])[0]
        + lists_of([path("a", ["starred"])], ["Cy"], id="q2")[0]
        + lists_of([path("a", ["starred"])], ["Cy"], id="q3")[0]
    )
    texts = {"q1": "what is a like [QSP] ?", "q2": "who is in a", "q3": "a's actor"}
    pairs = pair_lists(
        lists, texts, STEPS, weights=weights, weight_range=(0.25, 4.0), weight_scale="log"
    )
    assert pairs[0].left == texts["q1"]
    assert pairs[3].rights[0] == "a, directed by, inverse of directed by, in language, end"
    assert pairs[1].rights[:2] == ("a, directed by, inverse of directed by", "a, directed by, end")
    assert [one.required for one in pairs] == [0, 1, 1, 0, 0, 0, 0, 0]
    positive = {one.weights[0] for one in pairs}
    negative = {weight for one in pairs for weight in one.weights[1:]}
    assert positive == ({1.0} if weights == "none" else {0.25, 4.0})
    ends = (0.25, 4.0) if weights == "both" else (1.0, 1.0)
    assert (min(negative), max(negative)) == pytest.approx(ends)
    assert all(len(one.rights) == len(one.weights) for one in pairs)


def test_weighted_positives_weigh_by_the_f1_of_what_they_reach():
    """Of b's two actors one path reaches both, the other one of them among four: F1 1 and 1/3."""
    whole = dataclasses.replace(path("b", ["starred"]), reached=2, correct=2)
    loose = dataclasses.replace(path("b", ["directed by"]), reached=4, correct=1)
    plain, _ = lists_of([whole, loose], ["Cy", "Di"])
    lists, _ = lists_of([whole, loose], ["Cy", "Di"], weighted=True)
    assert [dataclasses.replace(one, share=1.0) for one in lists] == plain
    shares = {one.path: one.share for one in lists}
    assert shares == pytest.approx({whole.steps: 1, loose.steps: 1 / 3})
    # Beside a path of F1 1/3 alone there is no better one.
    assert {one.share for one in lists_of([loose], ["Cy", "Di"], weighted=True)[0]} == {1}
    settings = {"weights": "none", "weight_range": (0.5, 2.0), "weight_scale": "log"}
    pairs = pair_lists(with_counts(lists), {"q1": "who?"}, STEPS, **settings)
    assert [pair.weights[0] for pair in pairs] == [shares[one.path] for one in lists]


def test_paths_are_written_as_in_search():
    assert STEPS.text(NODE["a"], (STEP["starred"], END)) == "a, starred, end"
    assert STEPS.text(NODE["a"], ()) == "a"


def test_hard_positives_are_at_least_as_similar_as_the_mean():
    assert hard_positives([0.1, 0.5, 0.3]) == [False, True, True]
    assert hard_positives([0.7]) == [True]
    third = float(np.float32(0.1))
    assert hard_positives([third] * 3) == [True] * 3
