"""The reader: asked each prompt once, whoever it is."""

import pytest
from support import llm_server

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.llm import endpoint
from ark_jax.pipeline import engine
from ark_jax.recipes.ark import config
from ark_jax.recipes.core import ask
from ark_jax.recipes.documents import reader
from ark_jax.runtime.log import Metrics, read_rows

FORM = ReadingPrompt("{passages} {question}")


def world(tmp_path, **reader) -> engine.Context:
    c = config.ark()
    c.mesh = (1, 1, 1)
    c.evaluate.max_new_tokens = 6
    c.reader.update(reader)
    c.llm.backend, c.llm.retries = "openai", 1
    c.llm.key_env, c.llm.base_url, c.llm.model = (
        "ARK_OTHER_KEY",
        "http://127.0.0.1:9",
        "not this one",
    )
    return engine.Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))


def test_a_remote_reader_gets_each_prompt_once(tmp_path, monkeypatch):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.setenv("ARK_TEST_KEY", "sk-of-the-reader")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoint, "BACKOFF", 0.02)
    prompts = ["Who?", "When?", "Who?", "Refused?"]
    with llm_server.serving(
        lambda messages: f"{messages[0]['content'][:-1]}ever\nsince",
        lambda conversation, attempt: "400" if "Refused" in conversation else None,
    ) as server:
        context = world(
            tmp_path,
            backend="openai",
            base_url=server.url,
            key_env="ARK_TEST_KEY",
            model="toy",
            price=(1.0, 2.0),
        )
        replies, counts = reader.answer_prompts(context, prompts, FORM)
        assert replies == {"Who?": "Whoever", "When?": "Whenever", "Refused?": ""}
        assert sorted(request.prompt for request in server.requests) == sorted(set(prompts))
        body, headers = server.requests[0].body, server.requests[0].headers
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("toy", 6, 0)
        assert headers["authorization"] == "Bearer sk-of-the-reader"
        assert counts["unanswered"] == 1
        assert counts["llm"]["cost"] == pytest.approx(
            (counts["llm"]["input_tokens"] + 2 * counts["llm"]["output_tokens"]) / 1e6
        )
        assert counts["llm"]["cost"] > 0
        again = reader.answer_prompts(context, [*prompts, "Where?"], FORM)
        assert again[0] == replies | {"Where?": "Whereever"} and len(server.requests) == 4
        assert again[1]["llm"]["cached"] == 3
    kinds = [row["kind"] for row in read_rows(tmp_path / "llm" / "replies.jsonl")]
    assert kinds == ["read"] * 4


def test_errors_of_a_remote_reader_name_its_settings(tmp_path, monkeypatch):
    pytest.importorskip(
        "openai", reason="the live backend needs the openai client: pip install 'ark-jax[llm]'"
    )
    monkeypatch.delenv("ARK_TEST_KEY", raising=False)
    with pytest.raises(
        RuntimeError,
        match=r"^reader\.backend=openai: set \$ARK_TEST_KEY .*, or config\.reader\.base_url",
    ):
        reader.answer_prompts(world(tmp_path, backend="openai", key_env="ARK_TEST_KEY"), ["Who?"])


class Lamplighter:
    """A generator of 64 positions, whose tokens are words."""

    max_length, calls = 64, []

    def tokenizer(self, text: str, add_special_tokens: bool) -> dict:
        return {"input_ids": text.split()}

    def chat(self, turn: str) -> str:
        return f"<s> {turn} </s>"

    def generate(self, prompts, *, done, **settings) -> None:
        self.calls.append((list(prompts), settings))
        for i, text in enumerate(prompts):
            done(i, f" {text.split()[1]} it was ")


def test_a_local_reader_reads_each_prompt_once(tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        ask, "load_generator", lambda context, path: loaded.append(path) or Lamplighter()
    )
    asked, context = (
        ["Who keeps the lamp?", "When was it lit?", "Who keeps the lamp?"],
        world(tmp_path),
    )
    context.config.generator.path = "smol"
    replies, counts = reader.answer_prompts(context, asked, FORM)
    assert replies == {asked[0]: "Who it was", asked[1]: "When it was"} and loaded == [""]
    [(prompts, settings)] = Lamplighter.calls
    assert prompts == ["<s> Who keeps the lamp? </s>", "<s> When was it lit? </s>"]
    assert (settings["max_new_tokens"], settings["temperature"], settings["stop"]) == (
        6,
        0.0,
        ("\n",),
    )
    assert counts["unanswered"] == 0 and (
        counts["llm"]["requests"],
        counts["llm"]["output_tokens"],
    ) == (2, 6)
    assert reader.answer_prompts(context, asked, FORM)[0] == replies and loaded == [
        ""
    ]  # what is known needs no model
    context.config.generator.dtype = "bfloat16"  # another model in effect
    reader.answer_prompts(context, asked, FORM)
    context.config.reader.path = "llama"
    reader.answer_prompts(context, asked, FORM)
    assert loaded == ["", "", "llama"]
    with pytest.raises(
        ValueError,
        match=r"1 of 1 prompts .* 64 that the model takes: .*evaluate\.max_new_tokens .*passages$",
    ):
        reader.answer_prompts(context, ["Who? " * 60], FORM)
