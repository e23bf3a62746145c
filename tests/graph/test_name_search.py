"""Names looked up in bulk, found in texts, and near others."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.graph.linked_questions import Mentions, look_up, nearest
from ark_jax.graph.triples import Triples


def terms_of(*names: str, aliases=None):
    """Nodes n0, n1, ... with these names."""
    called = {f"n{i}": name for i, name in enumerate(names)}
    return Triples.from_triples([(id, "r", id) for id in called], called, aliases).nodes


def search(terms, *texts: str) -> list[list[str]]:
    return [list(names) for names in Mentions(terms).find(texts)]


def test_an_exact_name_is_preferred_to_an_id_and_to_another_case():
    terms = Triples.from_triples(
        [("1", "r", "2"), ("3", "r", "4")], {"1": "2", "2": "Comedy", "3": "comedy"}, {"4": ["X"]}
    ).nodes
    lookup = look_up(["2", "1", "Comedy", "COMEDY", "x", "absent", "2"], terms)
    assert lookup.nodes == {"2": (0,), "1": (0,), "Comedy": (2,), "COMEDY": (1, 2), "x": (3,)}
    assert lookup.also_ids == ["2"]
    assert look_up([], terms).nodes == look_up(["a"], terms_of()).nodes == {}


@given(st.lists(st.sampled_from(["a", "A", "b", "Ä", "ä", "n0", "n1", "n2"]), max_size=6))
def test_a_lookup_agrees_with_find_of_each_name(names):
    terms = terms_of("a", "b", "A", aliases={"n1": ["Ä", "a"]})
    nodes = look_up(names, terms).nodes
    for name in names:
        assert list(nodes.get(name, ())) == terms.find(name)


@pytest.mark.parametrize(
    "text, names",
    [
        ("who directed The Comedy?", ["The Comedy"]),
        ("is Comedy a comedy", ["Comedy"]),
        ("is it a comedy", ["comedy"]),
        ("which tragicomedy is it", []),
        ("the life of frederica of mecklenburg-strelitz", ["frederica of mecklenburg - strelitz"]),
        ("who saw Some Mother's Son?", ["Some Mother ' s Son"]),
        ("WHO SAW SOME MOTHER'S SON", ["some mother ' s son"]),
        ("Ada Lovelace met Ada", ["Ada", "Ada Lovelace"]),
        ("what is her name, the one and only", []),
        ("who wrote the story about Ada", ["Ada"]),
        ("who wrote the story", ["the story"]),
        ("who is M", []),
        ("東京はどこですか", ["東 京"]),
        ("", []),
    ],
)
def test_names_are_found_in_a_text(text, names):
    terms = terms_of(
        "Comedy",
        "comedy",
        "The Comedy",
        "frederica_of_mecklenburg-strelitz",
        "Some Mother's Son",
        "Ada",
        "Ada Lovelace",
        "Her",
        "the",
        "the story",
        "M",
        "?",
        "東京",
    )
    assert sorted(search(terms, text)[0]) == names


def test_mentions_give_all_nodes_of_a_name_or_alias():
    terms = terms_of("Paris", "Paris", "Lyon", aliases={"n2": ["Lugdunum"]})
    assert Mentions(terms).find(["where is Paris", "where is Lugdunum", "where"]) == [
        {"Paris": (0, 1)},
        {"Lugdunum": (2,)},
        {},
    ]
    assert Mentions(terms_of()).find(["where is Paris"]) == [{}]


def test_the_nearest_names_are_listed_best_first():
    terms = terms_of("Kismet", "Kismat", "The Kiss", "Comedy", aliases={"n3": ["Kismets"]})
    assert nearest("kismett", terms) == ["Kismet", "Kismets", "Kismat"]
    assert nearest("xyz", terms) == []
    assert nearest("Kismet", terms_of()) == nearest("", terms_of()) == []


def test_the_nearest_of_50_000_names_is_found_soon():
    terms = terms_of(*(f"Person number {i} of the town" for i in range(50_000)))
    start = time.process_time()
    assert "Person number 12345 of the town" in nearest("Persn number 12345 of the town", terms)
    assert time.process_time() - start < 10  # a second, where each name compared takes a minute
