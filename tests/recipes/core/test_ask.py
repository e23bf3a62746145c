"""What decides the replies of a run's own model."""

import pytest
from support.world import make_world, tiny_config

from ark_jax.llm import complete
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import config
from ark_jax.recipes.core import ask as asking
from ark_jax.recipes.core.ask import ask, llm_settings
from ark_jax.runtime.log import Metrics


@pytest.mark.parametrize("role", ["llm", "rewriter", "reader", "judge"])
def test_the_reply_key_of_a_local_model_covers_dtype_and_seed(role, tmp_path):
    c = config.ark()
    c.generator.path, c[role].backend, c[role].temperature = str(tmp_path), "local", 0.0
    key = lambda: llm_settings(c, role).key(("x",))
    greedy = key()
    c.seed = 7
    assert key() == greedy
    c.generator.dtype = "bfloat16"
    assert key() != greedy
    c[role].temperature = 0.7
    drawn, c.seed = key(), 8
    assert key() != drawn


@pytest.mark.usefixtures("mesh")
def test_a_local_model_can_write_questions(tmp_path):
    """The role "questions" has no section of a model: `llm` says which one it is."""
    world = make_world(tmp_path)
    c = tiny_config(world)
    c.llm.backend, c.llm.max_tokens, c.llm.reasks = "local", 4, 0
    context = Context(c, tmp_path, Metrics(tmp_path / "metrics.jsonl"))
    calls = [complete.Call("questions/x", "questions", ("Ask something.",))]
    answers = ask(context, calls, "questions", complete.accept_all, role="questions")
    assert len(answers.texts["questions/x"]) == 1 and not answers.rejected
    (row,) = (tmp_path / "llm" / "replies.jsonl").read_text().splitlines()
    assert '"usage"' in row
    c.llm.max_tokens = 100_000
    answers = ask(context, calls, "questions", complete.accept_all, role="questions")
    assert "set config.llm.max_tokens" in answers.rejected["questions/x"]


@pytest.mark.usefixtures("mesh")
def test_replies_do_not_depend_on_the_groups_of_prompts(tmp_path, monkeypatch):
    """One prompt is too long, some are asked again, two calls are one request."""
    c, at_once = tiny_config(make_world(tmp_path)), []
    c.llm.backend, c.llm.max_tokens, c.llm.reasks, c.llm.temperature = "local", 6, 1, 1.0
    generate = LanguageModel.generate

    def counted(self, prompts, **settings):
        at_once.append(len(prompts))
        return generate(self, prompts, **settings)

    monkeypatch.setattr(LanguageModel, "generate", counted)
    texts = [f"Ask number {i}." for i in range(8)] + ["x" * 9999, "Ask number 3.", "What now?"]
    calls = [complete.Call(f"extract/{i}", "extract", (text,)) for i, text in enumerate(texts)]
    remark = lambda call, texts, cut: "Say more." if call.item[-1] in "25" else None

    def answers(prompts: int):
        monkeypatch.setattr(asking, "PROMPTS", prompts)
        workdir = tmp_path / str(prompts)
        context = Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
        replies = ask(context, calls, "extract", remark)
        return dict(replies.texts), replies.rejected, replies.usage

    whole, grouped = answers(100), answers(3)
    assert grouped == whole and list(whole[1]) == ["extract/8"]
    assert at_once == [9, 2, 2, 3, 2, 2, 2]
