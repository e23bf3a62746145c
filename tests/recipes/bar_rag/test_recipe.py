"""The stages of BAR-RAG by config, and the values that are refused."""

import pytest
from support import bar_world

from ark_jax.recipes.bar_rag.recipe import stages

BEGINNING = ["data", "pool", "baselines", "warm", "test-warm"]
ENGINE = {"rollout.backend": "openai", "rollout.base_url": "http://host/v1"}
ENGINE |= {"rollout.model": "/policy"}
LEARNING = [*BEGINNING, "filter-1", "select-1", "evidence-1", "read-1"]


def test_an_iteration_selects_and_reads_before_the_measurements(tmp_path):
    names = [stage.name for stage in stages(bar_world.tiny_config(tmp_path))]
    assert names[: len(LEARNING)] == LEARNING


def test_random_evidence_leaves_out_the_training_of_the_selector(tmp_path):
    c = bar_world.tiny_config(tmp_path)
    c.iterations, c.read.evidence = 2, "random"
    names = [stage.name for stage in stages(c)]
    without = [name for name in LEARNING if name != "select-1"]
    assert names[: len(without) + 3] == [*without, "filter-2", "evidence-2", "read-2"]


def test_without_iterations_only_the_first_stages_run(tmp_path):
    c = bar_world.tiny_config(tmp_path)
    c.iterations = 0
    names = [stage.name for stage in stages(c)]
    assert names[: len(BEGINNING)] == BEGINNING and "read-1" not in names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generator.path": "https://host/v1"}, "an endpoint's weights cannot be trained"),
        ({"filter.low": 0.9, "filter.high": 0.3}, "swap them"),
        ({"select.passages": 5}, r"config\.pool\.size=4 passages"),
        ({"read.cite": True}, r"set config\.read\.chat=True"),
        ({"prompts.read": "none.txt"}, r"config\.prompts\.read"),
        ({"data.fold": (3, 2)}, r"config\.data\.fold"),
        ({"rollout.backend": "openai"}, r"config\.rollout\.base_url, which is ''"),
        (ENGINE | {"rollout.model": "policy"}, r"config\.rollout\.model, which is 'policy'"),
        (ENGINE | {"rollout.base_url": "http://u:p@host/v1"}, "holds a name or password"),
        (ENGINE | {"generator.path": "/x/../policy"}, r"is config\.generator\.path too"),
        (ENGINE | {"selector.path": "/policy"}, r"is config\.selector\.path too"),
        (
            ENGINE | {"selector.kind": "writer", "selector.path": "/other"},
            r"changes its weights, not its model",
        ),
    ],
)
def test_invalid_config_values_are_refused(tmp_path, changes, message):
    c = bar_world.tiny_config(tmp_path)
    c.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        stages(c)
