"""A second search looks for what the first one left open."""

from ark_jax.retrieval.bm25_index import count_bm25
from ark_jax.retrieval.turns import Turns
from ark_jax.text.prompts import load_template

TEXTS = [
    "The lamp of the tower was lit by the mother of Ann.",
    "Ruth was the mother of Ann.",
    "A tower stood in Thrale.",
    "Ruth kept bees.",
]


def search(reply: str, k: int = 3) -> tuple[list[int], list[str]]:
    """What is found for a question if the model writes `reply`, and its prompts."""
    asked: list[str] = []
    write = lambda filled: asked.extend(filled) or [reply] * len(filled)
    turns = Turns(count_bm25(TEXTS), TEXTS, write, load_template("turns"), shown=1)
    (found,) = turns.search(["tower"], k)
    return list(map(int, found.ids)), asked


def test_both_searches_are_joined_by_ranks():
    first, _ = search("")
    assert first == [2, 0]  # only these have the word
    found, (prompt,) = search("<think>bees?</think>The mother of Ann is\n needed.")
    assert found == [0, 2, 1]  # 0 is second, then first
    assert TEXTS[2] in prompt and TEXTS[0] not in prompt and "Question: tower" in prompt
    assert search("<think>never ends", 1)[0] == [2]
