"""Which models, files and endpoints a config names follows from its fields' contents."""

import pytest

from ark_jax.pipeline.recipe import load_recipe
from ark_jax.recipes.ark.config import ark
from ark_jax.recipes.bar_rag.config import bar_rag
from ark_jax.recipes.gpr.config import gpr
from ark_jax.recipes.star.config import star

MODELS = {"retriever.path": "r", "generator.path": "g"}


@pytest.mark.parametrize(
    ("make", "changes", "models", "files", "roles"),
    [
        (ark, {}, MODELS, {}, ("reader",)),
        (ark, {"mine.by": "rewritten"}, MODELS, {}, ("llm", "reader")),
        (ark, {"graph.openie": "records", "mine.by": "bm25"}, MODELS, {}, ("reader",)),
        (
            ark,
            {"train.kind": "cross", "reranker.path": "c", "evaluate.retrievers": ("a", "b")},
            MODELS
            | {"reranker.path": "c", "evaluate.retrievers, a": "a", "evaluate.retrievers, b": "b"},
            {},
            ("reader",),
        ),
        (
            ark,
            {"judge.repeats": 1, "judge.backend": "local", "judge.path": "j", "reader.path": "x"},
            MODELS | {"judge.path": "j", "reader.path": "x"},
            {},
            ("reader", "judge"),
        ),
        (ark, {"reader.backend": "openai", "reader.path": "x"}, MODELS, {}, ("reader",)),
        (gpr, {}, {"retriever.path": "r"}, {}, ("llm",)),
        (gpr, {"llm.backend": "local"}, MODELS, {}, ("llm",)),
        (
            gpr,
            {"data.questions": "q", "questions.replies": "w", "evaluate.read": 1},
            MODELS,
            {"data.questions": "q", "questions.replies": "w"},
            ("llm", "reader"),
        ),
        (star, {"data.names": "n"}, {"retriever.path": "r"}, {"data.names": "n"}, ()),
        (bar_rag, {"selector.path": "s"}, MODELS | {"selector.path": "s"}, {}, ()),
    ],
)
def test_the_models_files_and_roles_that_a_run_reads_are_listed(
    make, changes, models, files, roles
):
    c = make()
    c.update_from_flattened_dict(MODELS | changes)
    recipe = load_recipe(c.recipe)
    assert recipe.paths(c, "model", "models") == models
    assert recipe.paths(c, "file", "files", "input") == files
    assert set(recipe.roles(c)) == set(roles)
    assert recipe.data_path(c) == ""
