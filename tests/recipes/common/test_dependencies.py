"""What a stage depends on outside the workdir."""

import pytest
from support import tiny

from ark_jax.pipeline.stage import setting
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.common.dependencies import language_model, reranker


@pytest.mark.parametrize(
    ("backend", "asking"), [("none", set()), ("openai", {"extract", "rewrite"})]
)
def test_settings_of_a_language_model_that_is_not_asked_decide_nothing(backend, asking):
    c = config.ark()
    c.llm.backend = backend
    other = config.ark()
    other.llm.update(backend=backend, model="another", temperature=0.5, reasks=1)

    def decides(c) -> dict[str, tuple]:
        return {
            stage.name: (
                [setting(c, field) for field in stage.settings],
                language_model("llm")(c) if stage.name in ("extract", "rewrite") else {},
            )
            for stage in stages(c)
        }

    before, after = decides(c), decides(other)
    assert {name for name in before if before[name] != after[name]} == asking


def test_hyde_alone_depends_on_prompt_and_language_model(tmp_path):
    c = config.ark()
    stage = lambda: next(stage for stage in stages(c) if stage.name == "baselines")
    assert "search.expand" not in stage().settings and "llm" not in stage().external(c)
    c.search.expand, c.llm.backend, c.llm.model = "hyde", "openai", "toy"
    before = stage().external(c)
    assert {"search.expand", "llm.model"} <= {*stage().settings} and before["llm"] == "toy"
    c.prompts.hyde = str(tmp_path / "own.txt")
    (tmp_path / "own.txt").write_text("What might answer {question}?")
    assert {name for name, x in stage().external(c).items() if x != before[name]} == {"prompt hyde"}


def test_another_reranker_evaluates_again(tmp_path):
    c = config.ark()
    evaluate = lambda: next(stage for stage in stages(c) if stage.name == "evaluate")
    prints = [reranker(c)]
    for seed in (0, 1):
        folder = tiny.write(tmp_path / str(seed), "bert", weights=tiny.tensors("bert", seed))
        c.evaluate.rerank = str(folder)
        prints.append(reranker(c))
    assert prints[0] == {} and prints[1] != prints[2]
    assert prints[2].items() <= evaluate().external(c).items()
