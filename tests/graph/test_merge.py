"""Records become a graph: what columns give is what a loop over the records gives."""

import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.graph.extract import Entity, Relation
from ark_jax.graph.store import KnowledgeGraph, fold

NAMES = st.sampled_from(["Ada", "ada", "The Ada", "Bo", "BO ", "bo", "Ça", "", "“”", "𝒳y", "Zed"])
TYPES = st.sampled_from(["Person", "person", "PLACE", "İ", ""])
TEXTS, CHUNKS = st.sampled_from(["", "a.", "b.", "é"]), st.sampled_from(["c1", "c2", "c3"])
WHOLE = Entity("b", "t", "", "c")
ENTITIES = st.lists(st.builds(Entity, NAMES, TYPES, TEXTS, CHUNKS), max_size=12)
RELATIONS = st.lists(
    st.builds(Relation, NAMES, NAMES, TEXTS, st.sampled_from([0.5, 2.0]), CHUNKS), max_size=12
)


def merge_one_by_one(entities: list[Entity], relations: list[Relation]) -> dict:
    """Nodes in the order of their first record; ends without a record come after all others."""
    names, types = {}, collections.defaultdict(collections.Counter)
    texts, chunks = collections.defaultdict(dict), collections.defaultdict(dict)
    for e in entities:
        if key := fold(e.name):
            names.setdefault(key, collections.Counter())[e.name] += 1
            types[key][e.type.lower()] += 1
            texts[key][e.description] = chunks[key][e.chunk] = None
    described, edges = set(names), {}
    for r in relations:
        a, b = fold(r.source), fold(r.target)
        if not a or not b or a == b:
            continue
        for key, name in ((a, r.source), (b, r.target)):
            counts = names.setdefault(key, collections.Counter())
            if key not in described:
                counts[name] += 1
                texts[key][r.description] = None
            chunks[key][r.chunk] = None
        edge = edges.setdefault(frozenset((a, b)), [0.0, {}, {}])
        edge[0] += r.weight
        edge[1][r.description] = edge[2][r.chunk] = None
    numbers = {key: i for i, key in enumerate(names)}
    pairs = sorted((sorted(map(numbers.get, pair)), edge) for pair, edge in edges.items())
    most = lambda counts: min(counts, key=lambda text: (-counts[text], text))
    return {
        "names": list(map(most, names.values())),
        "types": [most(types[key]) if key in types else "unknown" for key in names],
        "descriptions": [[text for text in texts[key] if text] for key in names],
        "chunks": [list(chunks[key]) for key in names],
        "edges": [pair for pair, _ in pairs],
        "weights": [edge[0] for _, edge in pairs],
        "edge_descriptions": [list(edge[1]) for _, edge in pairs],
        "edge_chunks": [list(edge[2]) for _, edge in pairs],
    }


@settings(deadline=None, max_examples=300)
@given(ENTITIES, RELATIONS)
def test_merging_columns_equals_merging_records_one_by_one(entities, relations):
    graph = KnowledgeGraph.from_records(entities, relations)
    for field, values in merge_one_by_one(entities, relations).items():
        assert list(map(_plain, getattr(graph, field))) == values, field


def test_invalid_records_are_refused_with_field_and_row():
    with pytest.raises(ValueError, match=r"name='a\\ud800'.* holds half of a character"):
        KnowledgeGraph.from_records([WHOLE, Entity("a\ud800", "t", "", "c")], [])
    with pytest.raises(ValueError, match="entities: row 1, description is empty: fill it in"):
        KnowledgeGraph.from_records([WHOLE, Entity("a", "t", None, "c")], [])
    with pytest.raises(ValueError, match="edge_chunks: 0 for 1 relations: give one each"):
        KnowledgeGraph.from_columns("ab", "tt", [[]] * 2, [[]] * 2, [(0, 1)], [1.0], [["x"]], [])


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else value
