"""Texts of relations and triples."""

import numpy as np
import pyarrow as pa
import pytest

from ark_jax.graph.triples import Triples, relation_texts, triple_texts


def graph_of(*relations: str, names=None) -> Triples:
    columns = (["a"] * len(relations), relations, ["b"] * len(relations))
    return Triples.from_columns(*map(pa.array, columns), relation_names=names)


@pytest.mark.parametrize(
    "id, text",
    [
        ("people.person.place_of_birth", "place of birth"),
        ("__people__ethnicity__languages_spoken", "languages spoken"),
        ("/people/person/spouse_s./people/marriage/spouse", "spouse"),
        ("http://dbpedia.org/ontology/birthPlace", "birthPlace"),
        ("http://www.w3.org/2000/01/rdf-schema#label", "label"),
        ("http://x.org/knows/", "knows"),
        ("starred_actors", "starred actors"),
        ("is a. b. of", "is a. b. of"),
        ("version_2.0", "version 2.0"),
        ("__", "__"),
        ("生まれ.場所", "場所"),
    ],
)
def test_a_relation_is_written_as_its_last_part(id, text):
    assert relation_texts(graph_of(id)) == [text]
    assert relation_texts(graph_of(id), "whole") == [id]


def test_equal_last_parts_keep_the_parts_that_differ():
    ids = ["people.person.parents", "fiction.character.parents", "x.person.parents", "a.b.c"]
    assert relation_texts(graph_of(*ids)) == [
        "people person parents",
        "character parents",
        "x person parents",
        "c",
    ]
    assert relation_texts(graph_of("a_b", "a__b", "b")) == ["a_b", "a__b", "b"]


def test_a_given_relation_name_is_kept_unchanged():
    graph = graph_of("7", "film.film.directed_by", names={"7": "directed_by"})
    assert relation_texts(graph) == ["directed_by", "directed by"]
    graph = graph_of("7", "film.by", names={"7": "by"})
    assert relation_texts(graph) == ["by", "film by"]


def test_triples_are_written_with_names_or_else_ids():
    graph = Triples.from_triples([("1", "p.born_in", "2"), ("2", "p.in", "3")], {"1": "Ada"})
    first, second = "Ada | born in | 2", "2 | in | 3"
    assert triple_texts(graph, np.array([1, 0, 1])) == [second, first, second]
    assert triple_texts(graph, np.array([0]), "whole") == ["Ada | p.born_in | 2"]
    assert triple_texts(graph, np.array([], int)) == []


def test_the_text_of_an_unknown_triple_is_refused():
    graph = Triples.from_triples([("1", "p.born_in", "2"), ("2", "p.in", "3")])
    with pytest.raises(IndexError, match="rows 0 to 2: this graph has 2"):
        triple_texts(graph, np.array([0, 2]))


def test_an_unknown_form_of_relation_texts_is_refused():
    with pytest.raises(ValueError, match="by is 'first': give 'last' or 'whole'"):
        relation_texts(Triples.from_triples([("1", "p.in", "2")]), "first")
