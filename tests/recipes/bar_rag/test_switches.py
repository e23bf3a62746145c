"""Where publication, appendix and released code disagree: what the field of each point does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import bar_world

from ark_jax.data.records import Question
from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.recipes.bar_rag import config, reading, select
from ark_jax.recipes.bar_rag.reading import Rule
from ark_jax.recipes.bar_rag.recipe import stages
from ark_jax.recipes.bar_rag.rollouts import DrawnSet, Rollout
from ark_jax.recipes.bar_rag.select import filter_of
from ark_jax.recipes.documents.reader_training import PooledQuestion
from ark_jax.text.cited import parse_answer, parse_choice
from ark_jax.text.prompts import load_template
from ark_jax.train.config import GrpoConfig
from ark_jax.train.policy import PolicyLoss, token_loss

SMALL, PAPER, OFFICIAL = map(config.bar_rag, ("small", "paper", "official"))


def test_the_papers_prompts_ask_for_its_order_and_forms():
    """A.9, tables 7 and 8: task, form, rules, an example, the question, then the documents."""
    for name, parts in {
        "cite": ("Answer from these", "<think>", "<answer>", "Doc [i]", "few words", "</answer>"),
        "select": ("{count}", "1.", "5.", "<think>", "<answer>", "exactly {count}", "[4], [6]"),
    }.items():
        text = load_template(name, PAPER.prompts[name])
        places = [0]
        for part in (*parts, "Question: {question}", "{passages}"):
            places.append(text.index(part, places[-1]))
        example = text[text.index("A reply looks like") :].split("\n\n")[1]
        if name == "cite":
            parsed = parse_answer(example, 5)
            assert parsed.citations == (2, 5) and parsed.answer == "61 km"
        else:
            parsed = parse_choice(example, 25)
            assert parsed.numbers == (4, 6, 9)
        assert not parsed.problem


def test_the_filter_uses_the_training_rule_by_default():
    assert Rule.of_filter(SMALL) == Rule.of_training(SMALL) == Rule(0.8, 1.0, 1.0)
    assert Rule.of_filter(PAPER) == Rule(0.5, 1.0, 1.0)
    assert Rule.of_filter(OFFICIAL) == Rule(0.8, 0.7, 0.95) != Rule.of_training(OFFICIAL)


def test_the_filter_can_run_once_or_in_each_iteration(tmp_path):
    c = bar_world.tiny_config(tmp_path)
    c.iterations = 2
    names = lambda: [stage.name for stage in stages(c)]
    assert "filter-2" in names()
    c.filter.each = False
    assert "filter-2" not in names() and filter_of(c, 2) == "filter-1"


POOLED = PooledQuestion(
    0, Question("q", "which?", ("tin",), ()), ("a", "b", "c"), (0.9, 0.8, 0.7), (("a",),)
)


def rewarded(c, *p, chunks=("a", "b")):
    sets = [DrawnSet(question_id="q", chunk_ids=list(chunks), p=one) for one in p]
    return select.reward_sets(sets, {"q": POOLED}, c)


def test_a_well_formed_set_earns_a_bonus():
    c = config.bar_rag()
    plain = rewarded(c, 0.5)[0].reward
    c.select.format_bonus = 0.1
    assert rewarded(c, 0.5)[0].reward == pytest.approx(plain + 0.1)


def test_an_unreadable_selection_has_zero_reward_and_a_negative_advantage():
    good, bad = rewarded(config.bar_rag(), 0.4, None)
    assert bad.reward == 0 < good.reward and bad.advantage < 0 < good.advantage
    assert good.live and bad.live


def test_a_group_of_unreadable_selections_does_not_train():
    rows = rewarded(config.bar_rag(), None, None)
    assert len(rows) == 2 and not any(row.live or row.advantage for row in rows)


def test_unreadable_selections_are_left_out_of_the_mean_likelihood():
    shares = select.summary(rewarded(config.bar_rag(), 0.4, None))
    assert shares["well_formed"] == 0.5 and shares["p"] == 0.4
    assert select.summary(rewarded(config.bar_rag(), None, None))["p"] == 0


def test_the_citable_setting_limits_which_citations_count():
    c = config.bar_rag("paper")
    c.read.citations, form = 1, ReadingPrompt("{passages} {question}", cite=True)
    reply = "<think> Doc [7] says so. </think>\n<answer> tin </answer>"
    rollout = Rollout(question_id="q", sample=0, ids=[5], text=reply, ended=True)
    asked = [reading.Asked(POOLED, 2, "", [5])] * 2
    judge = lambda: reading.reward_replies([rollout] * 2, asked, np.zeros(2, int), form, c)[0]
    assert judge().citations == [] and judge().reward == pytest.approx(0.8 + 0.2 * 0.5)
    c.read.citable = 31
    assert judge().citations == [7] and judge().reward == pytest.approx(1.0)


def test_only_the_lenient_form_accepts_a_malformed_selection():
    reply = "I pick <answer> 3 and 9 </answer>"
    assert parse_choice(reply, 5, strict=SMALL.selector.strict).problem
    lenient = parse_choice(reply, 5, strict=OFFICIAL.selector.strict)
    assert lenient.numbers == (3,) and not lenient.problem


def test_measured_answers_use_the_configured_temperature(monkeypatch):
    asked = {}

    class Reader:
        def generate(self, prompts, **options):
            asked.update(options)
            return ["tin"] * len(prompts)

    form = reading.reading_prompt(SMALL)
    for c in (SMALL, OFFICIAL):
        temperature = c.evaluate.temperature
        reading.best_answers(Reader(), form, ["x"], [1], max_new_tokens=3, temperature=temperature)
        assert asked["temperature"] == temperature


def test_the_paper_rewards_relevance_with_its_temperature():
    """Eq. 7 and 10 with A.5's weights .2 and tau 10: .2 x .8 / (.8 + 10)."""
    score = rewarded(PAPER, 0.5, 0.25, chunks=("a", "b", "c"))[0]
    assert score.relevance == pytest.approx(0.8 / 10.8)
    assert score.reward == pytest.approx(1 + 0.2 * 0.8 / 10.8)


def test_the_papers_loss_clips_the_ratio_of_the_whole_output():
    """Eq. 18, `r = pi(a) / pi_old(a)`, by a loop over two answers of 3 and 2 tokens."""
    logs = np.array([[-1.0, -2.0, -0.5], [-0.3, -0.2, 0.0]])
    changes = np.array([[-0.1, 0.2, -0.3], [0.05, 0.1, 9.0]])
    mask, gains = np.array([[1, 1, 1], [1, 1, 0]], bool), np.array([1.0, -1.0])
    r = np.exp([changes[0].sum(), changes[1, :2].sum()])
    terms = [min(x * a, np.clip(x, 0.8, 1.2) * a) for x, a in zip(r, gains, strict=True)]
    section = PAPER.read
    settings = PolicyLoss.from_config(GrpoConfig(ratio=section.ratio, mean=section.mean))
    arrays = map(jnp.array, (logs, logs - changes))
    loss, _ = token_loss(*arrays, None, jnp.array(gains), jnp.array(mask), settings)
    assert float(loss) == pytest.approx(-np.mean(terms), abs=1e-5)


@pytest.mark.parametrize("gain", [-1.0, 0.0, 1.0])
def test_the_ratio_of_a_long_output_does_not_overflow(gain):
    settings = PolicyLoss(ratio="output", mean="sequence")
    old, mask = jnp.full((1, 9), -100.0), jnp.ones((1, 9), bool)
    loss = lambda logs: token_loss(logs, old, None, jnp.full(1, gain), mask, settings)[0]
    value, gradient = jax.value_and_grad(loss)(jnp.zeros((1, 9)))
    assert jnp.isfinite(value) and jnp.isfinite(gradient).all()


def test_the_clipped_ratio_can_be_per_token_or_per_answer():
    """Above one update, the tokens of an answer share one clipped ratio."""
    logs = jnp.array([[-1.0, -1.0]])
    old = jnp.array([[-1.5, -0.8]])
    arguments = (logs, old, None, jnp.ones(1), jnp.ones((1, 2), bool))
    settings = lambda ratio: PolicyLoss.from_config(GrpoConfig(ratio=ratio))
    loss = lambda ratio: float(token_loss(*arguments, settings(ratio))[0])
    assert loss("sequence") == pytest.approx(-np.exp(0.15), abs=1e-5)
    assert loss("token") == pytest.approx(-(1.2 + np.exp(-0.2)) / 2, abs=1e-5)
