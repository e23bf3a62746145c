"""Graphs of facts for tests: small random multigraphs, and one whose triples have known roles."""

import numpy as np

from ark_jax.graph.triples import Triples

# "a r b" is asked about in the tests: its siblings, its pair turned round, neighbours, and others.
FACTS = [
    ("a", "r", "b"),
    ("a", "r", "c"),  # a sibling if b is asked for
    ("d", "r", "b"),  # a sibling if a is asked for
    ("b", "s", "a"),  # the same pair turned round
    ("a", "s", "b"),  # the same pair by another relation
    ("a", "s", "e"),
    ("e", "s", "b"),
    ("c", "s", "e"),  # shares nothing
    ("f", "r", "g"),  # nor does this
]


def random_graph(seed: int, *, nodes: int = 12, relations: int = 3, triples: int = 40) -> Triples:
    """A multigraph with self-loops and parallel relations."""
    rng = np.random.default_rng(seed)
    rows = zip(
        rng.integers(0, nodes, triples),
        rng.integers(0, relations, triples),
        rng.integers(0, nodes, triples),
        strict=True,
    )
    return Triples.from_triples([(f"n{h}", f"r{r}", f"n{t}") for h, r, t in rows])


def row_of(graph: Triples, fact: tuple[str, str, str]) -> int:
    return list(graph).index(fact)
