"""What an answer rests on, and what is refused before anything is measured."""

import pytest
from support import bar_world

from ark_jax.data.records import Chunk
from ark_jax.recipes.bar_rag import evaluate
from ark_jax.recipes.bar_rag.recipe import stages


def test_holders_are_the_chunks_that_contain_the_answer():
    chunks = [
        Chunk("a", "d", 0, 9, 1, "The bell is of tin."),
        Chunk("b", "d", 0, 9, 1, "The bell is of Tin, not of iron."),
        Chunk("c", "d", 0, 9, 1, "The tinker."),
    ]
    assert evaluate.holders("tin", chunks) == ["a", "b"]
    assert evaluate.holders("", chunks) == evaluate.holders("lead", chunks) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate.sizes": (1, 5)}, "config.evaluate.sizes: 5 passages, but .*pool.size=4"),
        ({"evaluate.passages": 6}, "config.evaluate.passages: 6 passages"),
    ],
)
def test_more_passages_than_the_pool_size_are_refused(tmp_path, changes, message):
    c = bar_world.tiny_config(tmp_path)
    c.update_from_flattened_dict(changes)
    with pytest.raises(ValueError, match=message):
        stages(c)
