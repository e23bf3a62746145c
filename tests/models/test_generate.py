"""Generation is that of transformers, whatever rows share a batch or a mesh."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
from support import tiny
from support.decoders import PROMPTS, STEPS, before, open_model, plain_pass

from ark_jax import layout
from ark_jax.models import generate
from ark_jax.models.language import LanguageModel


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


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_generation_takes_the_most_likely_token(shape, folder):
    with jax.set_mesh(layout.make_mesh(shape)):
        lm = open_model(folder("plain"))
        wanted = [
            lm.tokenizer.decode(before(ids, {1}), skip_special_tokens=True)
            for ids in greedy(folder("plain"))
        ]
        assert len(set(wanted)) == len(PROMPTS)
        assert lm.generate(PROMPTS, max_new_tokens=STEPS) == wanted


def test_bfloat16_takes_tokens_that_are_nearly_the_most_likely(folder, mesh):
    exact = open_model(folder("plain"))
    lm = LanguageModel.from_pretrained(str(folder("plain")), compute="bfloat16")
    drawn = lm.sample(PROMPTS, n=1, max_new_tokens=STEPS, seed=0, temperature=1e-4, log_probs=False)
    prompts = exact.prompt_ids(PROMPTS)
    rows = [[*prompt, *ids] for prompt, ids in zip(prompts, drawn.ids, strict=True)]
    for logits, ids, row in zip(plain_pass(exact, rows), drawn.ids, rows, strict=False):
        predicting = logits[len(row) - len(ids) - 1 : len(row) - 1]
        missed = predicting.max(1) - predicting[np.arange(len(ids)), ids]
        assert missed.max() < 0.2 * predicting.std()


def test_generation_matches_transformers(folder, tmp_path, mesh):
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


LONG = [
    *PROMPTS,
    *("It was read every quarter of an hour by clerks" + " of the Board" * n for n in range(7)),
]


@pytest.mark.parametrize("budget", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_texts_do_not_depend_on_batch_size_or_order(budget, folder, monkeypatch, mesh, heard):
    """Rows wait for seats, the ring of positions wraps and grows, and seats are given up."""
    lm = open_model(folder("plain"))
    wanted = lm.generate(LONG, max_new_tokens=40)
    assert not any(name == "_select" for name, _ in heard)
    assert {len(LONG) <= shapes[-1][0] for name, shapes in heard if name == "_decode"} == {True}
    monkeypatch.setattr(generate, "RING", 8)
    heard.clear()
    order = np.random.default_rng(budget).permutation(len(LONG))
    texts = lm.generate([LONG[i] for i in order], max_new_tokens=40, batch_tokens=budget)
    assert texts == [wanted[i] for i in order]
    assert sum(name == "_prefill" for name, _ in heard) > 2 and any(
        name == "_select" for name, _ in heard
    )


def test_a_stop_string_frees_its_row_for_the_next_prompt(folder, mesh, heard):
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
        text.startswith(start) and not any(s in start for s in stop)
        for text, start in zip(whole, cut, strict=True)
    )
    assert sorted((i, text) for i, text, _ in events) == list(enumerate(cut))
    assert [turns for _, _, turns in events] == [1, 2, 3]  # of the five that forty tokens take
    assert [name for name, _ in heard if name != "_select"] == ["_prefill", "_decode"] * 3


def test_generation_compiles_few_programs(folder, mesh, heard):
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


def test_no_prompts_give_no_texts(folder, mesh):
    assert open_model(folder("plain")).generate([], max_new_tokens=STEPS) == []


def test_an_empty_prompt_starts_from_the_begin_or_stop_token(folder, mesh):
    """Or from the stop token, where a model has no begin token, as in log_likelihood."""
    lm = open_model(folder("plain"))
    assert lm.generate(["", PROMPTS[0]], max_new_tokens=STEPS) == lm.generate(
        ["</s>", PROMPTS[0]], max_new_tokens=STEPS
    )


def test_stop_tokens_are_read_from_generation_config(folder, tmp_path, mesh):
    lm = open_model(folder("plain"))
    second = min(set(range(tiny.VOCAB)) - set(lm.stop_ids))
    shutil.copytree(folder("plain"), tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [second]})
    )
    reopened = open_model(tmp_path / "model")
    assert set(reopened.stop_ids) == {*lm.stop_ids, second}


def test_a_prompt_without_room_to_generate_is_refused(folder, mesh):
    with pytest.raises(ValueError, match=f"prompt 1: {tiny.POSITIONS - 3} \\+ 4 tokens"):
        open_model(folder("plain")).generate(["x", "!" * (tiny.POSITIONS - 3)], max_new_tokens=4)
