"""Scores and generated texts against a plain pass over whole rows, and against transformers."""

import dataclasses
import functools
import json
import math
import re
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
from support.decoders import open_model, plain_pass
from support.paths import REPOSITORY

from ark_jax import layout
from ark_jax.data.records import Chunk, Question
from ark_jax.models import hf, language
from ark_jax.models.language import SPLIT, LanguageModel
from ark_jax.models.token_probabilities import LOGIT_BLOCK, token_log_probs
from ark_jax.recipes.ark import alignment
from ark_jax.text import prompts

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
        log_probs = token_log_probabilities(lm, [ids for ids, _ in rows])
    return (
        np.array([x[start - 1 :].sum() for x, (_, start) in zip(log_probs, rows, strict=True)]),
        np.array([len(ids) - start for ids, start in rows]),
    )


def test_the_test_pairs_cover_short_and_long_targets(folder, mesh):
    counts = expected(folder("plain"))[1]
    assert len(PAIRS) >= 60
    assert (counts == 1).sum() >= 20
    assert (counts > 8).sum() >= 10
    assert counts.max() > 24


def test_log_likelihoods_match_transformers(folder, mesh):
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
        sum(values[i, position - 1, ids[position]] for position in range(start, len(ids)))
        for i, (ids, start) in enumerate(rows)
    ]
    counts = [len(ids) - start for ids, start in rows]
    ours = lm.log_likelihood(PAIRS)
    np.testing.assert_array_equal(ours.tokens, counts)
    np.testing.assert_allclose(ours.sum, sums, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(ours.mean, np.array(sums) / counts, rtol=1e-5, atol=1e-4)


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


# Readers refuse the character around which prompts are tokenised in parts.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPLIT), max_size=12)
BOUNDARIES = st.sampled_from(
    ["", " ", "\n", " \n\t", "A", "A:", "Answer", "é", "🌊", "42", "\u00a0"]
)


@pytest.mark.parametrize("kind", ["plain", "begin"])
@settings(max_examples=300, deadline=None)
@given(head=TEXTS | st.sampled_from(PASSAGES), before=BOUNDARIES, after=BOUNDARIES, tail=TEXTS)
def test_prompt_and_target_are_split_as_in_lm_evaluation_harness(
    kind, head, before, after, tail, folder
):
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


def test_a_token_appended_by_the_tokenizer_is_ignored(tmp_path, mesh):
    """Otherwise the end would count as the target's, and a generation would begin after it."""
    plain, ended = (
        open_model(tiny.write(tmp_path / kind, "llama", tokenizer=kind))
        for kind in ("plain", "end")
    )
    pairs = [("The king", " of the tide"), ("", "salt"), ("Who?\n", "Ada")]
    assert (
        len(ended.tokenizer("salt")["input_ids"]) == len(plain.tokenizer("salt")["input_ids"]) + 1
    )
    wanted, ours = plain.log_likelihood(pairs), ended.log_likelihood(pairs)
    np.testing.assert_array_equal(ours.tokens, wanted.tokens)
    np.testing.assert_array_equal(
        ours.sum[[0, 2]], wanted.sum[[0, 2]]
    )  # an empty prompt begins with another stop token
    prompts = ["The king", "Salt and"]
    assert ended.generate(prompts, max_new_tokens=6) == plain.generate(prompts, max_new_tokens=6)


def test_shared_prefixes_do_not_change_scores_on_any_mesh(folder, any_mesh):
    sums, counts = expected(folder("plain"))
    ours = open_model(folder("plain")).log_likelihood(PAIRS)
    np.testing.assert_array_equal(ours.tokens, counts)
    np.testing.assert_allclose(ours.sum / counts, sums / counts, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_scores_do_not_depend_on_batches_or_order(folder, mesh):
    lm = open_model(folder("plain"))
    sums, counts = expected(folder("plain"))
    small = lm.log_likelihood(PAIRS[::-1], batch_tokens=1024)
    np.testing.assert_allclose(small.sum[::-1] / counts, sums / counts, rtol=0, atol=1e-5)
    for i in (0, 52, 60):
        alone = lm.log_likelihood([PAIRS[i]])
        assert alone.tokens.tolist() == [counts[i]]
        assert abs(alone.sum[0] - sums[i]) / counts[i] < 1e-5


def test_scoring_holds_the_logits_of_one_block_at_a_time(folder, monkeypatch, mesh):
    programs, suffix = [], language.suffix_log_probs

    def heard(*args):
        programs.append((args[-2].shape, suffix.lower(*args).compile().as_text()))
        return suffix(*args)

    monkeypatch.setattr(language, "suffix_log_probs", heard)
    lm = open_model(folder("plain"))
    lm.log_likelihood(PAIRS)
    assert sum(shape[1] for shape, _ in programs) > 4 * LOGIT_BLOCK
    for _, text in programs:
        shapes = {tuple(map(int, dims.split(","))) for dims in re.findall(r"f32\[([\d,]+)\]", text)}
        of_vocabulary = {shape for shape in shapes if tiny.VOCAB in shape}
        assert (LOGIT_BLOCK, tiny.VOCAB) in of_vocabulary
        assert max(map(math.prod, of_vocabulary)) == LOGIT_BLOCK * tiny.VOCAB


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


log_probs = jax.jit(token_log_probs, static_argnums=(1, 4))


# Padding on either side is one program.
@pytest.mark.parametrize(
    ("padding", "shape"),
    [
        ("right", (1, 1, 1)),
        ("left", (1, 1, 1)),
        ("none", (1, 1, 1)),
        ("left", (2, 2, 2)),
        ("none", (2, 2, 2)),
    ],
    ids=str,
)
def test_token_log_probabilities_sum_to_the_scores_of_pairs(padding, shape, folder):
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


@functools.partial(jax.jit, static_argnums=1)
def policy_gradient(model, cfg, tokens, mask, weights):
    loss = lambda model: policy_loss(token_log_probs(model, cfg, tokens, mask), weights)
    return jax.grad(loss)(model)


# A head of its own, and a tied one.
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("begin", (1, 1, 1)),
        ("plain", (2, 2, 2)),
        pytest.param("plain", (1, 1, 1), marks=pytest.mark.slow),
        pytest.param("begin", (2, 2, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients_of_log_probabilities_match_transformers(kind, shape, folder, tmp_path):
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
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == parameters.keys()
    for name, value in tensors.items():
        wanted = parameters[name].grad.numpy()
        scale = np.abs(wanted).max()
        assert scale > 1e-2, name
        np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=2e-5 * scale, err_msg=name)


@pytest.mark.slow
def test_gradients_of_log_probabilities_match_finite_differences(folder, mesh):
    lm = open_model(folder("begin"))
    *rows, weights = map(layout.rows, small_batch(lm))
    gradient = policy_gradient(lm.model, lm.cfg, *rows, weights)
    random = np.random.default_rng(4)
    draw = lambda x: jnp.asarray(random.standard_normal(x.shape).astype(np.float32))
    direction = jax.tree.map(draw, lm.model)

    def loss(step: float) -> float:
        moved = jax.tree.map(lambda x, d: x + step * d, lm.model, direction)
        return float(policy_loss(log_probs(moved, lm.cfg, *rows, None), weights))

    products = jax.tree.map(lambda g, d: float((g * d).sum()), gradient, direction)
    slope = sum(jax.tree.leaves(products))
    assert (loss(2e-4) - loss(-2e-4)) / 4e-4 == pytest.approx(slope, rel=1e-2)


def test_a_gradient_step_holds_the_logits_of_one_block_at_a_time(folder, mesh):
    lm = open_model(folder("begin"))
    compiled = policy_gradient.lower(lm.model, lm.cfg, *map(layout.rows, small_batch(lm))).compile()
    shapes = re.findall(r"f32\[([\d,]+)\]", compiled.as_text())
    sizes = [math.prod(map(int, dims.split(","))) for dims in shapes if str(tiny.VOCAB) in dims]
    assert max(sizes) == LOGIT_BLOCK * tiny.VOCAB < 8 * 96 * tiny.VOCAB


def test_the_original_code_scores_a_window_one_token_too_early(folder, mesh):
    """ARK counts the prompt's tokens without the begin token, but scores the text with it."""
    lm = open_model(folder("begin"))
    bare = lambda text: lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    pairs = [
        ("Read: The Tidal Board sat.\nQ: Who?\nA:", answer) for answer in ("a", "y", "no\nyes")
    ] + [("", "The Board")]
    means = lm.log_likelihood(pairs).mean
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
    np.testing.assert_allclose(means, right, rtol=0, atol=1e-5)
    assert (np.abs(means - np.array(early)) > 1e-3).all()


def test_no_pairs_give_no_scores(folder, mesh):
    scores = open_model(folder("plain")).log_likelihood([])
    assert scores.sum.shape == scores.tokens.shape == (0,)


@pytest.mark.parametrize("prompt", ["A:", "", "A: "])
def test_an_empty_target_is_refused_with_its_pair(prompt, folder, mesh):
    with pytest.raises(ValueError, match="pair 1: the target ''"):
        open_model(folder("plain")).log_likelihood([("A:", "yes"), (prompt, "")])


def test_a_pair_longer_than_the_context_is_refused(folder, mesh):
    lm = dataclasses.replace(open_model(folder("plain")), max_length=9)
    lm.log_likelihood([("!!!!!!!!", "?")])  # no merge has two of them
    with pytest.raises(ValueError, match="pair 1: 10 tokens, the model takes 9"):
        lm.log_likelihood([("A:", "yes"), ("!!!!!!!!!", "?"), ("!!!!!!!!!!", "?")])


TEMPLATES = alignment.load_templates({})


QUESTION = Question(
    "q1",
    "When did the clerks read the gauge, and why?",
    ("every quarter of an hour", "by day"),
    ("d",),
)


@pytest.mark.slow
def test_only_the_passage_is_cut_to_fit_the_model(folder, mesh):
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
                for name, slot in alignment.TARGETS.items()
            }
            ours = lm.log_likelihood(
                [(text.removesuffix(filled[slot]), filled[slot]) for slot, text in texts.items()]
            )
            assert [row[name] for name in alignment.TARGETS] == pytest.approx(
                ours.mean.tolist(), abs=1e-5
            )
            assert [row[f"{name}_tokens"] for name in alignment.TARGETS] == ours.tokens.tolist()
            sizes = [len(lm.tokenizer(text)["input_ids"]) for text in texts.values()]
            assert max(sizes) <= limit
            assert not row["cut"] or max(sizes) >= limit - 16


def test_a_question_without_room_for_a_passage_is_named(folder, mesh):
    lm = dataclasses.replace(open_model(folder("plain")), max_length=40)
    chunks = {"q1": [(Chunk("d#0", "d", 0, len(PASSAGES[0]), 9, PASSAGES[0]), 0.5)]}
    said = r"question 'q1', answer 0, chunk 'd#0': .* of the 40 tokens"
    with pytest.raises(ValueError, match=said):
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


def test_a_single_text_instead_of_a_list_is_refused(folder, mesh):
    with pytest.raises(ValueError, match="'Who' is one text; give a list of them"):
        open_model(folder("plain")).generate("Who", max_new_tokens=1)


def test_chat_applies_the_template_once(folder, mesh):
    lm = open_model(folder("chat"))
    assert lm.chat("Who?") == "<s>Who?</s><s>"
    assert lm.tokenizer(lm.chat("Who?"))["input_ids"][0] == 0
    assert open_model(folder("begin")).chat("Who?") == "Who?"


def test_chat_accepts_several_turns(folder, mesh):
    lm = open_model(folder("chat"))
    lm.tokenizer.chat_template = tiny.TEMPLATE.replace("<s>{{ m", "<s>{{ m['role'] }}: {{ m")
    assert lm.chat(["Who?"]) == lm.chat("Who?") == "<s>user: Who?</s><s>"
    turns = ["Who?", "Clerks.", "Who else?"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    expected = "<s>user: Who?</s><s>assistant: Clerks.</s><s>user: Who else?</s><s>"
    apply_template = lm.tokenizer.apply_chat_template
    assert apply_template(messages, add_generation_prompt=True, tokenize=False) == expected
    assert lm.chat(turns) == expected


def test_chat_without_a_template_joins_the_turns_in_lines(folder, mesh):
    turns = ["Who?", "Clerks.", "Who else?"]
    assert open_model(folder("begin")).chat(turns) == "Who?\nClerks.\nWho else?"


@pytest.mark.parametrize("turns", [[], ["Who?", "Clerks."]])
def test_a_chat_that_does_not_end_with_the_user_is_refused(turns, folder, mesh):
    with pytest.raises(ValueError, match=f"{len(turns)} turns: the last must be the user's"):
        open_model(folder("chat")).chat(turns)


def test_thinking_is_switched_off_in_the_chat_template(folder, mesh):
    """As Qwen3's template has it: without a word on it, the model thinks first."""
    lm = open_model(folder("chat"))
    lm.tokenizer.chat_template = (
        tiny.TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}"
        "<think></think>{% endif %}"
    )
    assert lm.chat("Who?") == "<s>Who?</s><s><think></think>"


def test_a_thought_that_the_chat_template_opens_is_closed(folder, mesh):
    """As DeepSeek-R1's template has it: a short reply would be all thought."""
    lm = open_model(folder("chat"))
    lm.tokenizer.chat_template = tiny.TEMPLATE + "<think>\n"
    assert lm.chat("Who?") == "<s>Who?</s><s><think>\n\n</think>\n\n"


def test_an_encoder_is_refused_as_a_language_model(tmp_path, mesh):
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


# What hf.py reads and writes of each family, type and mesh is compared in test_hf.py.
@pytest.mark.parametrize(
    ("family", "dtype", "shape"),
    [
        *((family, "float32", (1, 1, 1)) for family in tiny.DECODERS),
        ("qwen3", "bfloat16", (1, 1, 1)),
        ("llama", "bfloat16", (2, 2, 2)),
    ],
    ids=str,
)
def test_a_saved_language_model_is_loaded_unchanged(family, dtype, shape, tmp_path):
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


def test_weights_can_be_saved_in_float32_over_a_bfloat16_base(tmp_path, mesh):
    """A change too small for bfloat16 is kept."""
    base = write_chat_model(tmp_path / "base", "llama", "bfloat16")
    settings = json.loads((base / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (base / "config.json").write_text(json.dumps(settings))
    lm = open_model(base)
    lm.model.norm[...] = lm.model.norm[...] * (1 + 2**-12)
    lm.save_pretrained(tmp_path / "narrow")
    lm.save_pretrained(tmp_path / "wide", dtype="float32")
    narrow, wide = (open_model(tmp_path / name) for name in ("narrow", "wide"))
    np.testing.assert_array_equal(narrow.model.norm[...], open_model(base).model.norm[...])
    np.testing.assert_array_equal(wide.model.norm[...], lm.model.norm[...])
    saved = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert saved == settings | {"torch_dtype": "float32"}


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_a_saved_language_model_gives_the_same_logits_in_transformers(family, tmp_path, mesh):
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
    (ids,) = lm.prompt_ids(["It was read every hour by clerks."]).tolist()
    assert tokenizer(["It was read every hour by clerks."])["input_ids"] == [ids]
    with torch.no_grad():
        theirs = model.eval()(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(plain_pass(lm, [ids])[0, : len(ids)], theirs, rtol=1e-4, atol=1e-4)


def test_saving_into_the_source_folder_is_refused(tmp_path, mesh):
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
