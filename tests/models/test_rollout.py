"""Replies are drawn as often as the model says, by seed and place alone, and scored as they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from support import tiny
from support.decoders import PROMPTS, open_model, plain_pass

from ark_jax import layout
from ark_jax.models import generate
from ark_jax.models.language import LanguageModel, PairError
from ark_jax.models.rollout import Rollouts, draw_numbers

# A fifth of all tokens end a reply, so that replies differ in length.
ENDS = [1, *range(20, 80)]
NEW, SEED = 6, 7
THREE = PROMPTS[:3]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ends")
    return tiny.write(folder, "llama", tokenizer="plain", changes={"eos_token_id": ENDS})


def draw(lm: LanguageModel, prompts=THREE, **changes) -> Rollouts:
    return lm.sample(prompts, **{"n": 5, "max_new_tokens": NEW, "seed": SEED} | changes)


def lists(rollouts: Rollouts) -> list[list[int]]:
    return [ids.tolist() for ids in rollouts.ids]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def teacher_forced(lm: LanguageModel, prompts, completions) -> list[np.ndarray]:
    """log p of each completion token, by passes over whole rows that share nothing."""
    rows = [[*a, *b] for a, b in zip(prompts, completions, strict=True)]
    log_probs = log_softmax(plain_pass(lm, rows))
    return [
        log_probs[i, np.arange(len(a) - 1, len(a) + len(b) - 1), b]
        for i, (a, b) in enumerate(zip(prompts, completions, strict=True))
    ]


@functools.cache
def on_one_device(path) -> list[list[int]]:
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return lists(draw(open_model(path), log_probs=False))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (2, 2, 2),
        pytest.param((1, 8, 1), marks=pytest.mark.slow),
        pytest.param((4, 1, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_draws_and_log_probabilities_are_the_same_on_any_mesh(shape, path):
    """With eight devices and three prompts, the samples of a prompt are divided unequally."""
    with jax.set_mesh(layout.make_mesh(shape)):
        check_rollouts(open_model(path), on_one_device(path))


def check_rollouts(lm: LanguageModel, wanted: list[list[int]]) -> None:
    rollouts = draw(lm)
    assert lists(rollouts) == wanted
    assert len({tuple(ids) for ids in lists(rollouts)}) > 12
    assert rollouts.prompts.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert rollouts.samples.tolist() == [0, 1, 2, 3, 4] * 3
    prompt_ids = [lm.prompt_ids(THREE)[i] for i in rollouts.prompts]
    wanted = teacher_forced(lm, prompt_ids, lists(rollouts))
    assert {row.dtype for row in rollouts.log_probs} == {np.dtype(np.float32)}
    assert list(map(len, rollouts.log_probs)) == list(map(len, rollouts.ids))
    np.testing.assert_allclose(
        np.concatenate(rollouts.log_probs), np.concatenate(wanted), rtol=0, atol=2e-5
    )


def test_a_reply_ends_with_its_end_token_or_is_cut(path, mesh):
    lm = open_model(path)
    rollouts = draw(lm, n=40, max_new_tokens=3, log_probs=False)
    assert rollouts.log_probs is None
    assert set(lm.stop_ids) == set(ENDS)
    for ids, ended, text in zip(rollouts.ids, rollouts.ended, rollouts.texts, strict=True):
        *before, last = ids.tolist()
        assert not set(before) & set(ENDS)
        assert (last in ENDS) == ended
        assert ended or len(ids) == 3
        spoken = before if ended else ids
        assert text == lm.tokenizer.decode(spoken, skip_special_tokens=True)
    lengths = list(map(len, rollouts.ids))
    shapes = set(zip(lengths, rollouts.ended.tolist(), strict=True))
    assert shapes == {(1, True), (2, True), (3, True), (3, False)}


def test_tokenizing_a_drawn_text_again_can_give_other_tokens(path, mesh):
    """So ids must be kept: scores of the text would be those of other tokens."""
    lm = open_model(path)
    rollouts = draw(lm)
    again = lm.tokenizer(rollouts.texts, add_special_tokens=False)["input_ids"]
    spoken = [ids[:-1] if ids[-1] in ENDS else ids for ids in lists(rollouts)]
    assert sum(a != b for a, b in zip(again, spoken, strict=True)) > 3


def fit(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of a chi-square test; tokens expected fewer than five times are one class."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    merge = lambda x: np.append(x[~rare], x[rare].sum())
    return chisquare(merge(counts), merge(expected)).pvalue


@pytest.mark.parametrize("temperature", [0.6, pytest.param(1.0, marks=pytest.mark.slow)])
def test_token_frequencies_match_the_model_probabilities(temperature, path, mesh):
    """The first token of a reply, and the second after the most frequent first."""
    lm = open_model(path)
    rollouts = draw(
        lm, THREE[:2], n=4000, max_new_tokens=2, temperature=temperature, log_probs=False
    )
    prompt_ids = lm.prompt_ids(THREE[:2])
    for i, prompt in enumerate(prompt_ids):
        replies = [
            ids
            for ids, number in zip(lists(rollouts), rollouts.prompts, strict=True)
            if number == i
        ]
        count = lambda tokens: np.bincount(tokens, minlength=tiny.VOCAB)
        first = count([ids[0] for ids in replies])
        token = max(set(range(tiny.VOCAB)) - set(ENDS), key=lambda token: first[token])
        second = count([ids[1] for ids in replies if ids[0] == token])
        logits = plain_pass(lm, [prompt, [*prompt, token]])
        scores = logits[0, len(prompt) - 1], logits[1, len(prompt)]
        log_probs_drawn, other = (
            log_softmax(np.array(scores) / t) for t in (temperature, 1.2 * temperature)
        )
        assert fit(first, np.exp(log_probs_drawn[0])) > 1e-3 > 1e-6 > fit(first, np.exp(other[0]))
        assert fit(second, np.exp(log_probs_drawn[1])) > 1e-3
        assert (
            second * (log_probs_drawn[1] - log_probs_drawn[0])
        ).sum() > 10  # log-odds against a draw as for the first


def test_draws_do_not_depend_on_the_batch(path, mesh, heard, monkeypatch):
    """Rows wait for slots, and a prompt comes in several parts."""
    lm = open_model(path)
    wanted = on_one_device(path)
    monkeypatch.setattr(generate, "RING", 8)
    # A slot takes 16 + 8 positions, so that a prompt enters with at most two of its rows.
    assert lists(draw(lm, log_probs=False, batch_tokens=60)) == wanted
    assert sum(name == "_prefill" for name, _ in heard) > 6
    other = draw(lm, ["Why?", THREE[2], THREE[0]], n=3, places=[9, 2, 0], log_probs=False)
    assert lists(other)[3:] == wanted[10:13] + wanted[:3]


def test_a_prompt_is_computed_once_for_all_samples(path, mesh, heard):
    lm = open_model(path)
    draw(lm, log_probs=False)
    slots = [shapes[-2] for name, shapes in heard if name == "_prefill"]
    assert slots == [(1, 5)] * 3


def test_draws_depend_only_on_seed_place_and_sample(path, mesh):
    lm = open_model(path)
    prompts = THREE[:1] * 3

    def by_place(*places, **changes) -> list[list[list[int]]]:
        rollouts = lists(draw(lm, prompts, places=places, log_probs=False, **changes))
        return [rollouts[:5], rollouts[5:10], rollouts[10:]]

    first, second, third = by_place(4, 5, 4)
    assert first == third != second
    assert len(set(map(tuple, first))) > 3
    assert first not in by_place(4, 5, 4, seed=SEED + 1)
    first, second, third = by_place((1, 2, 3), (1, 3, 2), (1, 2, 3))
    assert first == third != second
    likeliest = lists(draw(lm, prompts, top_p=1e-6, log_probs=False))
    assert likeliest == likeliest[:1] * 15


@given(
    places=st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 3)), max_size=5, unique=True
    ),
    samples=st.integers(1, 4),
)
def test_every_reply_has_its_own_random_numbers(places, samples):
    numbers = draw_numbers(places, len(places), samples)
    rows = [tuple(row) for row in numbers.tolist()]
    assert rows[: len(places) * samples] == [(*p, j) for p in places for j in range(samples)]
    assert len(set(rows)) == len(places) * samples


def test_no_prompts_give_no_replies(path, mesh):
    rollouts = draw(open_model(path), [])
    assert (rollouts.ids, rollouts.texts, rollouts.log_probs) == ([], [], [])
    assert rollouts.prompts.shape == rollouts.samples.shape == rollouts.ended.shape == (0,)


def test_token_log_likelihoods_sum_to_log_likelihoods(path, mesh):
    lm = open_model(path)
    pairs = [(prompt, target) for prompt in THREE for target in (" the clerks", " x", " Board and")]
    encoded = lm._encode_pairs(pairs)
    split = [(ids[: len(ids) - n], ids[len(ids) - n :]) for ids, n in encoded]
    log_likelihoods = lm.token_log_likelihood(*zip(*split, strict=True))
    wanted = lm.log_likelihood(pairs)
    assert [row.sum() for row in log_likelihoods] == wanted.sum.tolist()
    assert list(map(len, log_likelihoods)) == wanted.tokens.tolist()
    np.testing.assert_allclose(
        np.concatenate(log_likelihoods),
        np.concatenate(teacher_forced(lm, *zip(*split, strict=True))),
        atol=2e-5,
    )


@pytest.mark.parametrize(
    ("prompts", "completions", "message"),
    [
        ([[5], []], [[6], [7]], "pair 1: its prompt or completion has no token"),
        ([[5], [5]], [[6], []], "pair 1: its prompt or completion has no token"),
        ([[5]], [[6, tiny.VOCAB]], f"pair 0: token ids 5 to {tiny.VOCAB}, but the model has"),
        ([[5]], [[-1]], "pair 0: token ids -1 to 5"),
        ([[5] * tiny.POSITIONS], [[6]], f"pair 0: {tiny.POSITIONS + 1} tokens, the model takes"),
    ],
)
def test_ids_that_cannot_be_scored_are_refused_with_their_pair(
    prompts, completions, message, path, mesh
):
    with pytest.raises(PairError, match=message):
        open_model(path).token_log_likelihood(prompts, completions)


def test_each_completion_needs_its_prompt(path, mesh):
    with pytest.raises(ValueError, match="1 prompts for 2 completions"):
        open_model(path).token_log_likelihood([[5]], [[6], [7]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"temperature": 0.0}, "temperature=0.0.*use `generate`"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": tiny.POSITIONS}, "prompt 0: .* tokens, the model takes"),
        ({"places": [1, 2]}, r"places: shape \(2,\) for 3 prompts"),
        ({"places": np.array([0.5, 1, 2])}, "places: must be integers"),
        ({"places": [0, -1, 2]}, "places: must be integers from 0"),
        ({"prompts": "one text"}, "is one text; give a list"),
    ],
)
def test_invalid_sampling_settings_are_refused(changes, message, path, mesh):
    with pytest.raises(ValueError, match=message):
        draw(open_model(path), **changes)


def test_the_end_token_is_the_tokenizers_or_else_the_first_stop_token(path, mesh):
    lm = open_model(path)
    assert lm.end_id == 1
    lm.tokenizer.eos_token = None
    assert lm.end_id == ENDS[0]


def test_sampling_without_an_end_token_is_refused(path, mesh):
    lm = open_model(path)
    lm.tokenizer.eos_token = None
    lm.stop_ids = ()
    with pytest.raises(ValueError, match="names a token that ends"):
        draw(lm)


def test_a_prompt_with_nan_logits_is_named(path, mesh):
    lm = open_model(path)
    token = next(iter(set(lm.prompt_ids(THREE)[2]) - set(lm.prompt_ids(THREE)[0])))
    lm.model.embed[...] = lm.model.embed[...].at[token].set(jnp.nan)
    with pytest.raises(FloatingPointError, match="prompt 2: the logits of token 0 are NaN"):
        draw(lm, log_probs=False)
