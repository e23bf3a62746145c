"""Which questions and sets a step has, what they earn, and what an interrupted run finds again."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import bar_world

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.bar_rag import config, select
from ark_jax.recipes.bar_rag import reading as drawn
from ark_jax.recipes.bar_rag.reading import answer_reward, reading_prompt
from ark_jax.recipes.bar_rag.recipe import stages
from ark_jax.recipes.bar_rag.rollouts import DrawnSet, Rollout, StepRows, stage_seed, steps_for
from ark_jax.recipes.documents.reader_training import (
    PooledQuestion,
    questions_of_steps,
    sets_with_gold,
)
from ark_jax.select.rewards import SetReward

PLAIN = ReadingPrompt("{passages} {question}", chat=False)


def pooled(number: int, chunks: int = 4, gold=((2,),), answers=("tin",)) -> PooledQuestion:
    name = lambda place: f"c{number}-{place}"
    return PooledQuestion(
        number,
        Question(f"q{number}", f"which {number}?", tuple(answers), ()),
        tuple(map(name, range(chunks))),
        tuple(0.9 - 0.1 * i for i in range(chunks)),
        tuple(tuple(map(name, holders)) for holders in gold),
    )


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 2**31 - 1))
def test_every_pass_takes_each_question_once(count, batch, seed):
    steps = list(itertools.islice(questions_of_steps(count, batch, seed), 3 * count))
    assert all(len(set(step)) == len(step) == min(batch, count) for step in steps)
    drawn = np.concatenate(steps)
    for start in range(0, len(drawn) - count + 1, count):
        assert sorted(drawn[start : start + count]) == list(range(count))


def test_seeds_differ_by_stage_and_run():
    c = config.bar_rag()
    seeds = {stage_seed(c, "read-1"), stage_seed(c, "read-2"), stage_seed(c, "select-1")}
    c.seed = 1
    assert len(seeds | {stage_seed(c, "read-1")}) == 4 and max(seeds) < 2**31
    assert [steps_for(0, 9, 4), steps_for(5, 9, 4)] == [3, 5]


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    citations: list[int]
    step: int = 0


def test_rows_of_a_step_are_computed_once_despite_a_kill(tmp_path):
    """Rows whose lists are all empty in one step join those of a step that has numbers."""
    path, steps_made = tmp_path / "sets.parquet", []

    def make(step: int):
        steps_made.append(step)
        return [Row(f"q{step}", [step] * (step > 0))]

    rows = StepRows(path, Row)
    for step in (0, 1):
        assert rows.rows(step, lambda step=step: make(step))[0].step == step
    damaged = tmp_path / "step-000001.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    again = StepRows(path, Row)  # as after a kill
    assert [row.id for row in again.stored] == ["q0"]
    for step in (0, 1, 2):
        again.rows(step, lambda step=step: make(step))
    assert steps_made == [0, 1, 1, 2]
    joined = again.join()
    assert [row.citations for row in joined] == [[], [1], [2]]
    assert [file.name for file in tmp_path.glob("*.parquet")] == ["sets.parquet"]
    # A kill after the join loses nothing either.
    assert (
        StepRows(path, Row).join() == joined
        and StepRows(path, Row).rows(2, lambda: make(2)) == joined[2:]
    )
    assert steps_made == [0, 1, 1, 2]


def test_warm_start_sets_hold_gold_chunks_at_random_places():
    questions = [pooled(0), pooled(1, gold=((0,), (3,))), pooled(2, chunks=1, gold=((0,),))]
    sets = sets_with_gold(questions, steps=40, batch=2, size=2, seed=3)
    assert len(sets) == 80
    by_id = {}
    for one, chunks in sets:
        by_id.setdefault(one.id, []).append(tuple(chunks))
    places = {chunks.index("c0-2") for chunks in by_id["q0"]}
    shown = {chunk for chunks in by_id["q0"] for chunk in chunks}
    assert places == {0, 1} and shown == {"c0-0", "c0-1", "c0-2", "c0-3"}
    assert {tuple(sorted(chunks)) for chunks in by_id["q1"]} == {("c1-0", "c1-3")}
    assert set(by_id["q2"]) == {("c2-0",)}
    assert sets == sets_with_gold(questions, steps=40, batch=2, size=2, seed=3)


def drawn_sets(pools, p) -> list[DrawnSet]:
    return [
        DrawnSet(question_id=one.id, chunk_ids=list(one.chunk_ids[:2][:: 1 - 2 * (i % 2)]), p=x)
        for one, values in zip(pools, p, strict=True)
        for i, x in enumerate(values)
    ]


def test_set_rewards_equal_values_computed_by_hand():
    c = config.bar_rag()
    c.select.centre, c.select.boundary, c.select.relevance = 0.4, 2.0, 0.3
    one, single = pooled(0), pooled(1, chunks=1)
    rows = drawn_sets([one, single], [(0.1, 0.7), (0.2, 0.2)])
    out = select.reward_sets(rows, {"q0": one, "q1": single}, c)
    near = [0.25, 0.5, 0.5, 0.5]
    relevant = [(1 + 0.85) / 2] * 2 + [0.95] * 2
    for row, b, r in zip(out, near, relevant, strict=True):
        assert row.boundary == pytest.approx(b) and row.relevance == pytest.approx(r)
        assert row.reward == pytest.approx(2 * b + 0.3 * r)
    # Two values, which differ in the first group alone, are 1/sqrt(2) deviations off their mean.
    assert [row.live for row in out] == [True, True, False, False]
    assert [round(row.advantage, 3) for row in out] == [-0.707, 0.707, 0, 0]


def test_a_set_of_a_pool_that_is_too_small_costs_nothing():
    c = config.bar_rag()
    single = pooled(1, chunks=1)
    out = select.reward_sets(drawn_sets([single], [(0.2, 0.2)]), {"q1": single}, c)
    assert [row.penalty for row in out] == [0, 0]
    assert SetReward(target=2)(0.2, [0.9]).penalty == 0.5  # else half of the set is missing


def advantages_of_equal_outcomes(c) -> list[float]:
    """The advantages of two sets of other relevance: p differs by less than the default spread."""
    one = pooled(0)
    rows = drawn_sets([one], [(0.2, 0.205)])
    rows[1] = dataclasses.replace(rows[1], chunk_ids=["c0-0", "c0-2"])
    return [row.advantage for row in select.reward_sets(rows, {"q0": one}, c)]


def test_groups_with_equal_outcomes_do_not_train_by_default():
    assert advantages_of_equal_outcomes(config.bar_rag()) == [0, 0]


def test_groups_with_equal_outcomes_train_under_the_papers_rule():
    """The paper's rule turns a difference of relevance into advantages of .7."""
    c = config.bar_rag()
    c.select.outcome_decides = False
    advantages = advantages_of_equal_outcomes(c)
    # Of two values, each is 1/sqrt(2) sample deviations from their mean.
    assert sorted(map(abs, advantages)) == pytest.approx([0.707, 0.707], abs=1e-3)


def test_groups_with_outcomes_further_apart_than_the_spread_train():
    c = config.bar_rag()
    c.select.spread = 0.001
    assert advantages_of_equal_outcomes(c)[0] != 0


def test_groups_with_any_difference_in_the_share_of_right_answers_train():
    c = config.bar_rag()
    c.success.by, c.select.spread = "samples", 0.9
    assert advantages_of_equal_outcomes(c)[0] != 0


def answers(texts, owner, c, form=PLAIN):
    rows = [
        Rollout(question_id=owner.id, sample=i, ids=[5, 1], text=text, ended=True)
        for i, text in enumerate(texts)
    ]
    asked = drawn.Asked(owner, 2, "", [5])
    return drawn.reward_replies(rows, [asked] * len(rows), np.zeros(len(rows), int), form, c)


def test_answer_rewards_equal_values_computed_by_hand():
    c = config.bar_rag()
    c.read.f1 = 0.6
    out = answers([" tin", "\n", " the tin bell", " iron"], pooled(0), c)
    assert [row.answer for row in out] == ["tin", "", "the tin bell", "iron"]
    assert [row.em for row in out] == [1, 0, 0, 0]
    # "the tin bell" has precision 1/2 and recall 1, as articles do not count: F1 is 2/3.
    assert [row.reward for row in out] == pytest.approx([1, 0, 0.6 * 2 / 3, 0])
    assert [row.well_formed for row in out] == [True, False, True, True]


def test_answers_of_different_outcomes_have_advantages_that_sum_to_0():
    c = config.bar_rag()
    c.read.f1 = 0.6
    out = answers([" tin", "\n", " the tin bell", " iron"], pooled(0), c)
    assert all(row.live for row in out) and drawn.summary(out)["phantom"] == 0
    assert sum(row.advantage for row in out) == pytest.approx(0, abs=1e-6)


def test_answers_of_equal_outcomes_train_only_if_configured():
    c = config.bar_rag()
    c.read.f1, c.read.outcome = 0.6, "exact_match"
    dead = answers([" tin bell", " iron"], pooled(0), c)
    assert not any(row.live or row.advantage for row in dead)
    assert drawn.summary(dead)["phantom"] == 1
    c.read.outcome_decides = False
    assert answers([" tin bell", " iron"], pooled(0), c)[0].advantage > 0.7


def test_citations_are_rewarded_if_the_reader_cites():
    c = config.bar_rag("paper")
    c.read.citations, c.read.citation = 1, 0.25
    form = reading_prompt(c)
    assert form.cite and form.chat and "<answer>" in form.template
    reply = "<think> Doc [2] says so, Doc [7] not. </think>\n<answer> tin </answer>"
    out = answers([reply, "tin", reply.replace("Doc [2]", "Doc [1], Doc [2]")], pooled(0), c, form)
    assert [row.citations for row in out] == [[2], [], [1, 2]]
    assert [row.reward for row in out] == pytest.approx([1, 0, 0.75 + 0.125])
    assert answer_reward(config.bar_rag()).citation_weight == 0


def test_presets_and_studies_are_valid(tmp_path):
    base = bar_world.tiny_config(tmp_path)
    runs = config.study(base) | config.ablations(base) | config.PRESETS
    for changes in runs.values():
        changed = base.copy_and_resolve_references()
        changed.update_from_flattened_dict(changes)
        assert [stage.name for stage in stages(changed)][-2:] == ["export", "report"]
    arms = config.study(base)
    assert len(arms) == 14
    steps = {name: changes.get("read.steps", base.read.steps) for name, changes in arms.items()}
    supervised = {name for name in arms if name.startswith("supervised")}
    # Equal times, not equal steps.
    assert {name for name in arms if steps[name] > base.read.steps} == supervised


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="must be one of small, paper, official"):
        config.bar_rag("best")
