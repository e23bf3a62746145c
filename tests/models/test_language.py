"""Scores and generated texts against a plain pass over whole rows, and against transformers."""

import dataclasses
import functools
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support import tiny
from support.paths import REPOSITORY

from ark_jax import layout
from ark_jax.data.records import Chunk, Question
from ark_jax.models import generate, hf, language, sampling
from ark_jax.models.language import LanguageModel
from ark_jax.recipes.ark import alignment, scored_prompts
from ark_jax.text import prompts

FAMILY = {"begin": "llama", "plain": "qwen3", "chat": "qwen3"}

PASSAGES = [
    "The Tidal Board sat above a shop.",
    "It was read every hour by clerks in pairs.",
    "Seven came.",
]
QUESTIONS = ["Who read it?", "When was that, and was it on 6 April?", "Why?"]
ANSWERS = ["a", "y", "Seven members, and two of them never came again.", "in 1784", "no\nyes"]
PAIRS = [
    *[
        (f"Read: {p}\nQ: {q}\nA:", answer)
        for p in PASSAGES
        for q in QUESTIONS
        for answer in ANSWERS
    ],  # shared prefixes
    *[
        (f"{word}{i}, said {i * 37} of them", f" {word}")
        for i, word in enumerate(["Oak", "zinc", "Ünder", "世界", "😀", "the"])
    ],
    ("", "The founder's survey"),
    ("", "x"),
    ("  ", "x"),
    ("\n", "The founder"),  # nothing to condition on
    ("A: ", "yes"),
    ("A:", " yes"),
    ("A:\n\n", "yes"),
    ("A: \t ", " yes "),
    ("A:", "yes"),  # blanks at the boundary
    ("A:", "yes"),
    ("A: yes", " and no"),
    ("A", ":"),
    ("A", ": yes and no"),  # twice, and pairs within pairs
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`folder(kind)` -> a decoder with a tokenizer of that kind, written once."""
    return functools.cache(
        lambda kind: tiny.write(tmp_path_factory.mktemp(kind), FAMILY[kind], tokenizer=kind)
    )


def open_model(path) -> LanguageModel:
    return LanguageModel.from_pretrained(str(path))


def split(tokenizer, prompt: str, target: str) -> tuple[list[int], int]:
    """Ids of the pair as one text, and the number of ids of the prompt without its last blanks."""
    whole, context = (
        tokenizer(prompt + target)["input_ids"],
        tokenizer(prompt.rstrip())["input_ids"],
    )
    if context:
        return whole, len(context)
    start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return [start, *whole], 1


@functools.partial(
    jax.jit, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0}
)
def all_logits(cfg, model, tokens):
    """Logits [b t v] of right-padded rows, by one pass that shares and caches nothing."""
    x = model(tokens, jnp.ones(tokens.shape, bool, out_sharding=jax.typeof(tokens).sharding), cfg)
    return jax.vmap(lambda row: model.logits(row, cfg), in_axes=1, out_axes=1)(x)


def plain_pass(lm: LanguageModel, rows: list[list[int]]) -> np.ndarray:
    """`all_logits` of at most 64 rows of at most 96 tokens, one shape for all."""
    tokens = np.zeros((64, 96), np.int32)
    for i, ids in enumerate(rows):
        tokens[i, : len(ids)] = ids
    return np.asarray(all_logits(lm.cfg, lm.model, layout.rows(tokens)), np.float64)


def token_log_probabilities(lm: LanguageModel, rows: list[list[int]]) -> list[np.ndarray]:
    """log p of each token of each row but its first."""
    logits = plain_pass(lm, rows)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return [logits[i, np.arange(len(ids) - 1), ids[1:]] for i, ids in enumerate(rows)]


@functools.cache
def expected(path) -> tuple[np.ndarray, np.ndarray]:
    """Sums and token counts of `PAIRS` on one device."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        lm = open_model(path)
        rows = [split(lm.tokenizer, *pair) for pair in PAIRS]
        found = token_log_probabilities(lm, [ids for ids, _ in rows])
    return (
        np.array([x[start - 1 :].sum() for x, (_, start) in zip(found, rows, strict=True)]),
        np.array([len(ids) - start for ids, start in rows]),
    )


def test_the_pairs_cover_what_they_should(folder, mesh):
    counts = expected(folder("plain"))[1]
    assert len(PAIRS) >= 60
    assert (counts == 1).sum() >= 20
    assert (counts > 8).sum() >= 10
    assert counts.max() > 24


def test_log_likelihood_is_that_of_transformers(folder, mesh):
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder("plain"), dtype=torch.float32).eval()
    lm = open_model(folder("plain"))
    rows = [split(lm.tokenizer, *pair) for pair in PAIRS]
    tokens = torch.zeros((len(rows), max(len(ids) for ids, _ in rows)), dtype=torch.long)
    for row, (ids, _) in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    with torch.no_grad():
        values = (
            reference(tokens).logits.log_softmax(-1).numpy()
        )  # causal: padding on the right needs no mask
    sums = [
        sum(values[i, at - 1, ids[at]] for at in range(start, len(ids)))
        for i, (ids, start) in enumerate(rows)
    ]
    counts = [len(ids) - start for ids, start in rows]
    found = lm.log_likelihood(PAIRS)
    np.testing.assert_array_equal(found.tokens, counts)
    np.testing.assert_allclose(found.sum, sums, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found.mean, np.array(sums) / counts, rtol=1e-5, atol=1e-4)


@functools.cache
def harness(path):
    """lm-evaluation-harness with a model that tells what it is to score."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_XET_HIGH_PERFORMANCE", "1")  # the import sets it for the whole process
        api = pytest.importorskip("lm_eval.api.model", reason="extra [reference] is not installed")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        lm = open_model(path)

    class Asked(api.TemplateLM):
        backend, eot_token_id = "causal", lm._start_token
        loglikelihood_rolling = generate_until = None

        def tok_encode(self, string, add_special_tokens=None, **_):
            return lm.tokenizer(string, add_special_tokens=add_special_tokens is not False)[
                "input_ids"
            ]

        def _loglikelihood_tokens(self, requests, **_):
            return [(context, target) for _, context, target in requests]

    return lm, lambda *pair: Asked().loglikelihood([SimpleNamespace(args=pair)], disable_tqdm=True)[
        0
    ]


BOUNDARIES = st.sampled_from(
    ["", " ", "\n", " \n\t", "A", "A:", "Answer", "é", "🌊", "42", "\u00a0"]
)


@pytest.mark.parametrize("kind", ["plain", "begin"])
@settings(max_examples=300, deadline=None)
@given(
    head=st.text(max_size=12) | st.sampled_from(PASSAGES),
    before=BOUNDARIES,
    after=BOUNDARIES,
    tail=st.text(max_size=12),
)
def test_the_boundary_is_that_of_lm_evaluation_harness(kind, head, before, after, tail, folder):
    lm, asked = harness(folder(kind))
    prompt, target = head + before, after + tail
    assume(not prompt or prompt.rstrip())  # of blanks alone the harness conditions on nothing
    assume(target)
    context, scored = asked(prompt, target)
    if not scored:
        with pytest.raises(ValueError, match="adds no token"):
            lm._encode_pairs([(prompt, target)])
    else:
        ((ids, n),) = lm._encode_pairs([(prompt, target)])
        assert (ids.tolist()[-n:], n) == (scored, len(scored))
        # If a merge crosses the boundary, the harness conditions on tokens that the text lacks.
        whole = lm.tokenizer(prompt + target)["input_ids"]
        crosses = bool(prompt) and whole[: len(context)] != context
        assert ids.tolist() == (whole if crosses else context + scored)


def test_a_token_that_the_tokenizer_puts_behind_a_text_is_none_of_it(tmp_path, mesh):
    """Otherwise the end would count as the target's, and a generation would begin after it."""
    plain, ended = (
        open_model(tiny.write(tmp_path / kind, "llama", tokenizer=kind))
        for kind in ("plain", "end")
    )
    pairs = [("The king", " of the tide"), ("", "salt"), ("Who?\n", "Ada")]
    assert (
        len(ended.tokenizer("salt")["input_ids"]) == len(plain.tokenizer("salt")["input_ids"]) + 1
    )
    wanted, found = plain.log_likelihood(pairs), ended.log_likelihood(pairs)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(
        found.sum[[0, 2]], wanted.sum[[0, 2]]
    )  # an empty prompt begins with another stop token
    prompts = ["The king", "Salt and"]
    assert ended.generate(prompts, max_new_tokens=6) == plain.generate(prompts, max_new_tokens=6)


def test_sharing_prefixes_changes_nothing_on_any_mesh(folder, any_mesh):
    sums, counts = expected(folder("plain"))
    found = open_model(folder("plain")).log_likelihood(PAIRS)
    np.testing.assert_array_equal(found.tokens, counts)
    np.testing.assert_allclose(found.sum / counts, sums / counts, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_batches_order_and_company_change_nothing(folder, mesh):
    lm = open_model(folder("plain"))
    sums, counts = expected(folder("plain"))
    small = lm.log_likelihood(PAIRS[::-1], batch_tokens=1024)
    np.testing.assert_allclose(small.sum[::-1] / counts, sums / counts, rtol=0, atol=1e-5)
    for i in (0, 52, 60):
        alone = lm.log_likelihood([PAIRS[i]])
        assert alone.tokens.tolist() == [counts[i]]
        assert abs(alone.sum[0] - sums[i]) / counts[i] < 1e-5


def test_no_array_holds_the_logits_of_more_than_a_block(folder, monkeypatch, mesh):
    programs, suffix = [], language._suffix_log_probs

    def heard(*args):
        programs.append((args[-2].shape, suffix.lower(*args).compile().as_text()))
        return suffix(*args)

    monkeypatch.setattr(language, "_suffix_log_probs", heard)
    lm = open_model(folder("plain"))
    lm.log_likelihood(PAIRS)
    assert sum(shape[1] for shape, _ in programs) > 4 * language.BLOCK
    for _, text in programs:
        shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
        of_vocabulary = {shape for shape in shapes if tiny.VOCAB in shape}
        assert (language.BLOCK, tiny.VOCAB) in of_vocabulary
        assert max(map(math.prod, of_vocabulary)) == language.BLOCK * tiny.VOCAB


def padded(rows: list[np.ndarray], left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and mask `[n 96]` of ids, n a multiple of eight; rows without ids are empty."""
    mask = np.zeros((-(-len(rows) // 8) * 8, 96), bool)
    for row, ids in zip(mask, rows, strict=False):
        row[: len(ids)] = True
    mask = mask[:, ::-1] if left else mask
    tokens = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(rows)
    return tokens, mask


# Compiled in half the time; partitioning, where a mesh could go wrong, is the same.
QUICK = {"xla_backend_optimization_level": 0}
log_probs = jax.jit(language.token_log_probs, static_argnums=(1, 4), compiler_options=QUICK)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_token_log_probs_add_up_to_the_scores_of_pairs(padding, shape, folder):
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder("plain"))
        pairs = lm._encode_pairs(PAIRS)
        tokens, mask = padded([ids for ids, _ in pairs], left=padding == "left")
        room = mask.size // layout.batch_multiple() if padding == "none" else None
        values = log_probs(lm.model, lm.cfg, *map(layout.rows, (tokens, mask)), room)
        values = layout.fetch(values)
    assert values.dtype == np.float32 and not values[~mask].any()
    visible = [row[seen] for row, seen in zip(values, mask, strict=True)]
    assert not any(row[:1].any() for row in visible)  # nothing stands before a first token
    sums = [row[len(row) - n :].sum() for row, (_, n) in zip(visible, pairs, strict=False)]
    wanted, counts = expected(folder("plain"))
    np.testing.assert_allclose(sums / counts, wanted / counts, rtol=0, atol=1e-5)


def policy_loss(log_probs, weights):
    """A weighted sum of token log-probabilities, as in a policy gradient."""
    return (log_probs * weights).sum()


def small_batch(lm: LanguageModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens and mask of eight pairs, one of them without a token, and a weight for each token."""
    tokens, mask = padded([ids for ids, _ in lm._encode_pairs(PAIRS[8:15])])
    return tokens, mask, np.random.default_rng(3).standard_normal(mask.shape).astype(np.float32)


@functools.partial(jax.jit, static_argnums=1, compiler_options=QUICK)
def policy_gradient(model, cfg, tokens, mask, weights):
    loss = lambda model: policy_loss(language.token_log_probs(model, cfg, tokens, mask), weights)
    return jax.grad(loss)(model)


@pytest.mark.parametrize("kind", ["plain", "begin"])  # a tied head, and one of its own
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_the_gradient_of_token_log_probs_is_that_of_transformers(kind, shape, folder, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder(kind))
        tokens, mask, weights = small_batch(lm)
        gradient = policy_gradient(lm.model, lm.cfg, *map(layout.rows, (tokens, mask, weights)))
        hf.export(gradient, lm.cfg, tmp_path, base=folder(kind), extra_tensors={})
    reference = AutoModelForCausalLM.from_pretrained(folder(kind), dtype=torch.float32).eval()
    ids = torch.tensor(tokens, dtype=torch.long)
    values = reference(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    policy_loss(values, torch.tensor(weights * mask)[:, 1:]).backward()
    parameters = dict(reference.named_parameters())
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == parameters.keys()
    for name, value in found.items():
        wanted = parameters[name].grad.numpy()
        scale = np.abs(wanted).max()
        assert scale > 1e-2, name
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-5 * scale, err_msg=name)


def test_the_gradient_of_token_log_probs_is_a_finite_difference(folder, mesh):
    lm = open_model(folder("begin"))
    *rows, weights = map(layout.rows, small_batch(lm))
    gradient = policy_gradient(lm.model, lm.cfg, *rows, weights)
    random = np.random.default_rng(4)
    direction = jax.tree.map(
        lambda x: jnp.asarray(random.standard_normal(x.shape).astype(np.float32)), lm.model
    )
    loss = lambda step: float(
        policy_loss(
            log_probs(
                jax.tree.map(lambda x, d: x + step * d, lm.model, direction), lm.cfg, *rows, None
            ),
            weights,
        )
    )
    slope = sum(
        jax.tree.leaves(jax.tree.map(lambda g, d: float((g * d).sum()), gradient, direction))
    )
    assert (loss(2e-4) - loss(-2e-4)) / 4e-4 == pytest.approx(slope, rel=1e-2)


def test_no_gradient_step_holds_the_logits_of_more_than_a_block(folder, mesh):
    lm = open_model(folder("begin"))
    compiled = policy_gradient.lower(lm.model, lm.cfg, *map(layout.rows, small_batch(lm))).compile()
    shapes = re.findall(r"f32\[([\d,]+)\]", compiled.as_text())
    sizes = [math.prod(map(int, dims.split(","))) for dims in shapes if str(tiny.VOCAB) in dims]
    assert max(sizes) == language.BLOCK * tiny.VOCAB < 8 * 96 * tiny.VOCAB


def test_the_window_of_the_original_code_is_one_token_early(folder, mesh):
    """ARK counts the prompt's tokens without the begin token, but scores the text with it."""
    lm = open_model(folder("begin"))
    bare = lambda text: lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = [
        ("Read: The Tidal Board sat.\nQ: Who?\nA:", answer) for answer in ("a", "y", "no\nyes")
    ] + [("", "The Board")]
    found = lm.log_likelihood(pairs).mean
    rows = lm.tokenizer([prompt + answer for prompt, answer in pairs])["input_ids"]
    early, right = [], []
    for (prompt, answer), ids, scores in zip(
        pairs, rows, token_log_probabilities(lm, rows), strict=True
    ):
        start, window = len(bare(prompt)), len(bare(answer))
        assert ids == [0, *bare(prompt), *bare(answer)]
        scores = np.concatenate([[0], scores])  # the begin token has no score
        early.append(scores[start : start + window].mean())
        right.append(scores[start + 1 : start + 1 + window].mean())
    assert early[0] == pytest.approx(
        early[1], abs=1e-6
    )  # one-token answers: both get the score of the prompt's colon
    assert abs(right[0] - right[1]) > 0.1
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)
    assert (np.abs(found - np.array(early)) > 1e-3).all()


def test_no_pairs(folder, mesh):
    found = open_model(folder("plain")).log_likelihood([])
    assert found.sum.shape == found.tokens.shape == (0,)


@pytest.mark.parametrize("prompt", ["A:", "", "A: "])
def test_an_empty_target_is_refused_by_number(prompt, folder, mesh):
    with pytest.raises(ValueError, match="pair 1: the target ''"):
        open_model(folder("plain")).log_likelihood([("A:", "yes"), (prompt, "")])


def test_a_pair_longer_than_the_context_is_refused_by_number(folder, mesh):
    lm = dataclasses.replace(open_model(folder("plain")), max_length=9)
    lm.log_likelihood([("!!!!!!!!", "?")])  # no merge has two of them
    with pytest.raises(ValueError, match="pair 1: 10 tokens, the model takes 9"):
        lm.log_likelihood([("A:", "yes"), ("!!!!!!!!!", "?"), ("!!!!!!!!!!", "?")])


TEMPLATES = scored_prompts.load_templates({})
QUESTION = Question(
    "q1",
    "When did the clerks read the gauge, and why?",
    ("every quarter of an hour", "by day"),
    ("d",),
)


@pytest.mark.slow
def test_the_passage_is_cut_where_the_model_ends_and_nothing_else(folder, mesh):
    """As little as possible; the flag says so; what is left is scored as it stands."""
    text = PASSAGES[1] * 12
    lm = open_model(folder("plain"))
    whole = len(lm.tokenizer(text)["input_ids"])
    for limit in (110, 250, 640):
        lm = dataclasses.replace(lm, max_length=limit)
        chunks = [
            (Chunk("d#0", "d", 0, len(text), whole, text), 0.5),
            (Chunk("d#1", "d", 0, 6, 2, "Short."), 0.25),
        ]
        table = alignment.align(
            lm, TEMPLATES, [QUESTION], {"q1": chunks}, references=0, batch_tokens=0, label=""
        ).to_pylist()
        assert [(row["chunk"], row["answer"], row["cut"]) for row in table] == [
            ("d#0", 0, limit < 640),
            ("d#0", 1, limit < 640),
            ("d#1", 0, False),
            ("d#1", 1, False),
        ]
        for answer, row in zip(QUESTION.answers, table, strict=False):
            filled = {"question": QUESTION.question, "answer": answer}
            left = alignment._PassageFitter(lm, TEMPLATES).fit(text, filled, "q1")
            assert text.startswith(left) and (left != text) == row["cut"]
            texts = {
                slot: prompts.fill(TEMPLATES[name], passage=left, **filled)
                for name, slot in scored_prompts.TARGETS.items()
            }
            found = lm.log_likelihood(
                [(text.removesuffix(filled[slot]), filled[slot]) for slot, text in texts.items()]
            )
            assert [row[name] for name in scored_prompts.TARGETS] == pytest.approx(
                found.mean.tolist(), abs=1e-5
            )
            assert [
                row[f"{name}_tokens"] for name in scored_prompts.TARGETS
            ] == found.tokens.tolist()
            sizes = [len(lm.tokenizer(text)["input_ids"]) for text in texts.values()]
            assert max(sizes) <= limit
            assert not row["cut"] or max(sizes) >= limit - 16


def test_a_question_that_leaves_no_room_is_named(folder, mesh):
    lm = dataclasses.replace(open_model(folder("plain")), max_length=40)
    chunks = {"q1": [(Chunk("d#0", "d", 0, len(PASSAGES[0]), 9, PASSAGES[0]), 0.5)]}
    with pytest.raises(ValueError, match=r"question 'q1': .* of the 40 tokens"):
        alignment.align(lm, TEMPLATES, [QUESTION], chunks, references=0, batch_tokens=0, label="")


# Pairs over long chunks, sixteen a chunk; and how much memory the process has taken at most.
MEMORY = """
import resource, sys
from ark_jax import LanguageModel
lm = LanguageModel.from_pretrained(sys.argv[1])
chunk = lambda i: f"Chunk {i}: " + "the tide was read " * 60
pairs = lambda n: [(chunk(i // 16) + f"question {i % 16}", f" answer {i}") for i in range(n)]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
lm.log_likelihood(pairs(500))
print(peak())
print(len(lm.log_likelihood(pairs(10_000)).sum), peak())
"""


@pytest.mark.slow
def test_ten_thousand_pairs_take_no_more_memory_than_five_hundred(folder):
    """But for their ids: two kilobytes a pair."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(folder("plain"))],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    few, scored, many = map(int, done.stdout.split())
    assert scored == 10_000
    assert many - few < 200  # MiB


PROMPTS = [
    "The Tidal Board was",
    "x",
    "It was read every quarter of an hour by clerks who worked",
    "Seven members",
    "世界",
]
STEPS = 12


@functools.cache
def greedy(path) -> list[list[int]]:
    """Greedy ids without any stop, every step a plain pass over the whole row, on one device."""
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        lm = open_model(path)
        rows = [list(ids) for ids in lm.tokenizer(PROMPTS)["input_ids"]]
        for _ in range(STEPS):
            logits = plain_pass(lm, rows)
            for i, ids in enumerate(rows):
                ids.append(int(logits[i, len(ids) - 1].argmax()))
    return [ids[-STEPS:] for ids in rows]


def before(ids: list[int], stops: set[int]) -> list[int]:
    return ids[: next((i for i, token in enumerate(ids) if token in stops), len(ids))]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_generate_takes_the_likeliest_token(shape, folder):
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder("plain"))
        wanted = [
            lm.tokenizer.decode(before(ids, {1}), skip_special_tokens=True)
            for ids in greedy(folder("plain"))
        ]
        assert len(set(wanted)) == len(PROMPTS)
        assert lm.generate(PROMPTS, max_new_tokens=STEPS) == wanted


def test_generate_is_that_of_transformers(folder, tmp_path, mesh):
    """One of two stop ids occurs in the middle of a continuation; each prompt is a batch."""
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder("begin"), dtype=torch.float32).eval()
    tokenizer = open_model(folder("begin")).tokenizer

    def generate(prompt: str, stops: list[int]) -> list[int]:
        ids = tokenizer(prompt, return_tensors="pt")
        out = reference.generate(
            **ids, do_sample=False, max_new_tokens=STEPS, eos_token_id=stops, pad_token_id=2
        )
        return before(out[0, ids["input_ids"].shape[1] :].tolist(), set(stops))

    stop = generate(PROMPTS[0], [1])[5]
    wanted = [generate(prompt, [1, stop]) for prompt in PROMPTS]
    assert len(wanted[0]) <= 5 < max(map(len, wanted))  # some row goes on when another has stopped
    lm = open_model(
        tiny.write(tmp_path, "llama", tokenizer="begin", changes={"eos_token_id": [1, stop]})
    )
    assert lm.stop_ids == (1, stop)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in wanted]
    assert lm.generate(PROMPTS, max_new_tokens=STEPS, batch_tokens=64) == texts


def test_a_stop_string_ends_the_text_before_it(folder, mesh):
    lm = open_model(folder("plain"))
    whole = lm.generate(PROMPTS, max_new_tokens=STEPS)
    late, early, other = whole[0][8:10], whole[0][3:5], whole[1][2:3]
    assert all(stop.strip() for stop in (late, early, other))
    cut = lm.generate(PROMPTS, max_new_tokens=STEPS, stop=[late, early, other])
    assert cut == [text.split(late)[0].split(early)[0].split(other)[0] for text in whole]
    assert (len(cut[0]), len(cut[1])) == (3, 2)


@pytest.fixture
def heard(monkeypatch):
    """Name and argument shapes of each function that `Generation` calls on the device."""
    calls = []

    def hear(name: str, real) -> None:
        def run(*args):
            calls.append(
                (name, tuple(x.shape for x in jax.tree.leaves(args) if hasattr(x, "shape")))
            )
            return real(*args)

        monkeypatch.setattr(generate, name, run)

    for name in ("_prefill", "_decode", "_select"):
        hear(name, getattr(generate, name))
    return calls


LONG = [
    *PROMPTS,
    *("It was read every quarter of an hour by clerks" + " of the Board" * n for n in range(7)),
]


@pytest.mark.parametrize("budget", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_neither_seats_nor_room_nor_order_change_a_text(budget, folder, monkeypatch, mesh, heard):
    """Rows wait for seats, the ring of positions wraps and grows, and seats are given up."""
    lm = open_model(folder("plain"))
    wanted = lm.generate(LONG, max_new_tokens=40)
    assert not any(name == "_select" for name, _ in heard)
    assert {len(LONG) <= shapes[-1][0] for name, shapes in heard if name == "_decode"} == {True}
    monkeypatch.setattr(generate, "RING", 8)
    heard.clear()
    order = np.random.default_rng(budget).permutation(len(LONG))
    found = lm.generate([LONG[i] for i in order], max_new_tokens=40, batch_tokens=budget)
    assert found == [wanted[i] for i in order]
    assert sum(name == "_prefill" for name, _ in heard) > 2 and any(
        name == "_select" for name, _ in heard
    )


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 8, 1), (4, 1, 2)], ids=str)
@pytest.mark.slow
def test_a_mesh_changes_no_text(shape, folder):
    run = lambda: open_model(folder("plain")).generate(LONG, max_new_tokens=20, batch_tokens=100)
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        wanted = run()
    with jax.set_mesh(layout.make_mesh(shape)):
        assert run() == wanted


def test_a_stop_string_frees_the_seat(folder, mesh, heard):
    """With one seat, each row runs up to its own stop and is reported before the next begins."""
    lm = open_model(folder("plain"))
    whole = lm.generate(PROMPTS[:3], max_new_tokens=40)
    stop = [text[3:5] for text in whole]
    events: list = []
    heard.clear()
    cut = lm.generate(
        PROMPTS[:3],
        max_new_tokens=40,
        stop=stop,
        batch_tokens=1,
        done=lambda i, text: events.append((i, text, sum(name == "_decode" for name, _ in heard))),
    )
    assert all(
        text.startswith(some) and not any(s in some for s in stop)
        for text, some in zip(whole, cut, strict=True)
    )
    assert sorted((i, text) for i, text, _ in events) == list(enumerate(cut))
    assert [turns for _, _, turns in events] == [1, 2, 3]  # of the five that forty tokens take
    assert [name for name, _ in heard if name != "_select"] == ["_prefill", "_decode"] * 3


def test_a_run_takes_few_programs(folder, mesh, heard):
    """The calls have no more shapes than there are padded lengths, however many the prompts."""
    lm = open_model(folder("plain"))
    lm.generate(
        ["!" * n for n in np.random.default_rng(0).integers(1, 60, 80)],
        max_new_tokens=9,
        batch_tokens=500,
    )
    calls = {
        name: [shapes for other, shapes in heard if other == name]
        for name in ("_prefill", "_decode")
    }
    assert len(calls["_prefill"]) > 12 and len(calls["_decode"]) > 12
    assert len(set(calls["_prefill"])) <= 3 and len(set(calls["_decode"])) <= 5


LOGITS = np.log([0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize(
    ("temperature", "top_p", "wanted"),
    [
        (1.0, None, [0.4, 0.3, 0.2, 0.1]),
        (0.5, None, np.array([16, 9, 4, 1]) / 30),
        (
            1.0,
            0.65,
            [4 / 7, 3 / 7, 0, 0],
        ),  # the likeliest whose sum reaches it; below, after the temperature
        (2.0, 0.8, np.array([0.4, 0.3, 0.2, 0]) ** 0.5 / (np.array([0.4, 0.3, 0.2]) ** 0.5).sum()),
    ],
)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature, top_p, wanted, shape):
    with jax.set_mesh(layout.make_mesh(shape)):
        check_draws(temperature, top_p, wanted)


def check_draws(temperature, top_p, wanted) -> None:
    n = 20_000
    logits = layout.rows(np.tile(LOGITS.astype(np.float32), (n, 1)))
    keys = layout.rows(np.asarray(sampling.row_keys(3, np.arange(n))))
    draw = jax.jit(
        lambda logits, keys, made: sampling.next_tokens(
            logits,
            sampling.Sampling(keys, temperature, top_p),
            jnp.full_like(keys[:, 0], made, jnp.int32),
        )
    )
    found = np.bincount(np.asarray(draw(logits, keys, 1)), minlength=4) / n
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.015)  # four standard deviations
    assert (found[np.array(wanted) == 0] == 0).all()
    other = np.asarray(draw(logits, keys, 2)) == np.asarray(draw(logits, keys, 1))
    assert other.mean() == pytest.approx(np.square(wanted).sum(), abs=0.02)  # each step draws anew


@pytest.mark.slow
def test_draws_are_the_seeds_and_not_the_batches(folder, mesh):
    lm = open_model(folder("plain"))
    draw = lambda **changes: lm.generate(
        PROMPTS * 2, **{"max_new_tokens": STEPS, "temperature": 1.0, "seed": 5} | changes
    )
    first = draw()
    assert draw(batch_tokens=64) == first
    assert draw(seed=6) != first
    assert first[: len(PROMPTS)] != first[len(PROMPTS) :]  # the same prompts, elsewhere in the list
    greedy_texts = lm.generate(PROMPTS * 2, max_new_tokens=STEPS)
    assert draw(top_p=1e-6) == draw(temperature=1e-7) == greedy_texts


@pytest.mark.parametrize(
    "changes", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}]
)
def test_a_sampling_that_makes_no_sense_is_refused(changes, folder, mesh):
    with pytest.raises(ValueError, match=next(iter(changes))):
        open_model(folder("plain")).generate(PROMPTS, **{"max_new_tokens": 2} | changes)


def test_no_prompts(folder, mesh):
    assert open_model(folder("plain")).generate([], max_new_tokens=STEPS) == []


def test_an_empty_prompt_goes_on_from_the_begin_token(folder, mesh):
    """Or from the stop token, where a model has no begin token, as in log_likelihood."""
    lm = open_model(folder("plain"))
    assert lm.generate(["", PROMPTS[0]], max_new_tokens=STEPS) == lm.generate(
        ["</s>", PROMPTS[0]], max_new_tokens=STEPS
    )


def test_a_token_that_generation_config_names_ends_a_text(folder, tmp_path, mesh):
    lm = open_model(folder("plain"))
    second = min(set(range(tiny.VOCAB)) - set(lm.stop_ids))
    shutil.copytree(folder("plain"), tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [second]})
    )
    found = open_model(tmp_path / "model")
    assert set(found.stop_ids) == {*lm.stop_ids, second}


def test_one_text_is_no_list_of_texts(folder, mesh):
    with pytest.raises(ValueError, match="'Who' is one text; give a list of them"):
        open_model(folder("plain")).generate("Who", max_new_tokens=1)


def test_a_prompt_that_leaves_no_room_is_refused_by_number(folder, mesh):
    with pytest.raises(ValueError, match=f"prompt 1: {tiny.POSITIONS - 3} \\+ 4 tokens"):
        open_model(folder("plain")).generate(["x", "!" * (tiny.POSITIONS - 3)], max_new_tokens=4)


def test_chat_applies_the_template_once(folder, mesh):
    lm = open_model(folder("chat"))
    assert lm.chat("Who?") == "<s>Who?</s><s>"
    assert lm.tokenizer(lm.chat("Who?"))["input_ids"][0] == 0
    assert open_model(folder("begin")).chat("Who?") == "Who?"


def test_chat_takes_turns(folder, mesh):
    lm = open_model(folder("chat"))
    lm.tokenizer.chat_template = tiny.TEMPLATE.replace("<s>{{ m", "<s>{{ m['role'] }}: {{ m")
    assert lm.chat(["Who?"]) == lm.chat("Who?") == "<s>user: Who?</s><s>"
    turns = ["Who?", "Clerks.", "Who else?"]
    messages = [
        {"role": role, "content": text}
        for role, text in zip(["user", "assistant", "user"], turns, strict=True)
    ]
    assert (
        lm.chat(turns)
        == lm.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        == "<s>user: Who?</s><s>assistant: Clerks.</s><s>user: Who else?</s><s>"
    )
    assert open_model(folder("begin")).chat(turns) == "Who?\nClerks.\nWho else?"
    for some in ([], turns[:2]):
        with pytest.raises(ValueError, match=f"{len(some)} turns: the last must be the user's"):
            lm.chat(some)


def test_a_model_that_can_think_is_told_to_reply_at_once(folder, mesh):
    """As Qwen3's template has it: without a word on it, the model thinks first."""
    lm = open_model(folder("chat"))
    lm.tokenizer.chat_template = (
        tiny.TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}"
        "<think></think>{% endif %}"
    )
    assert lm.chat("Who?") == "<s>Who?</s><s><think></think>"


def test_an_encoder_is_no_language_model(tmp_path, mesh):
    with pytest.raises(ValueError, match="bert generates no text"):
        open_model(tiny.write(tmp_path, "bert", tokenizer="cls"))


def write_chat_model(path: Path, family: str, dtype: str = "float32") -> Path:
    """A decoder with a chat template; Qwen2's tokenizer class adds a token to its vocabulary."""
    weights = tiny.tensors(family)
    for name in weights.keys() & {"model.embed_tokens.weight", "lm_head.weight"}:
        weights[name] = np.concatenate([weights[name], weights[name][:8]])
    changes = {"vocab_size": tiny.VOCAB + 8}
    return tiny.write(path, family, tokenizer="chat", dtype=dtype, changes=changes, weights=weights)


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_a_saved_language_model_is_the_same_model(family, dtype, shape, tmp_path):
    """Every file has the same bytes on any mesh, generation_config.json included."""
    base = write_chat_model(tmp_path / "base", family, dtype)
    (base / "generation_config.json").write_text('{"eos_token_id": [2]}')
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(base)
        lm.save_pretrained(tmp_path / "first")
        again = open_model(tmp_path / "first")
        again.save_pretrained(tmp_path / "second")
    assert contents(tmp_path / "second") == contents(tmp_path / "first") == contents(base)
    assert (again.stop_ids, again.max_length) == (lm.stop_ids, lm.max_length) == ((1, 2), 640)
    assert again.chat("Who?") == lm.chat("Who?") != "Who?"


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_transformers_opens_a_saved_language_model(family, tmp_path, mesh):
    torch = pytest.importorskip("torch", reason="transformers computes with torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    lm = open_model(write_chat_model(tmp_path / "base", family))
    lm.model.norm[...] = 2 * lm.model.norm[...]  # so that it is not the base that is read
    lm.save_pretrained(tmp_path / "saved")
    model, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading.values()), loading
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    (ids,) = lm.prompt_ids(["It was read every hour by clerks."])
    assert tokenizer(["It was read every hour by clerks."])["input_ids"] == [ids]
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(plain_pass(lm, [ids])[0, : len(ids)], theirs, rtol=1e-4, atol=1e-4)


def test_the_folder_of_a_language_model_is_not_written_over(tmp_path, mesh):
    base = tiny.write(tmp_path / "base", "llama", tokenizer="begin")
    before = contents(base)
    with pytest.raises(ValueError, match="is the folder this model was read from; give another"):
        open_model(base).save_pretrained(base / ".." / "base")
    assert contents(base) == before


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_knows_the_capital_of_france(real_models, mesh):
    lm = open_model(real_models["generator"])
    assert "Paris" in lm.generate([lm.chat("What is the capital of France?")], max_new_tokens=16)[0]
