"""Questions to triples: by names, by rows, from a saved folder and a file."""

import jax
import numpy as np
import pytest
from support import tiny

import ark_jax
from ark_jax import layout
from ark_jax.data.records import BadInput
from ark_jax.graph.linked_questions import look_up
from ark_jax.graph.triple_retriever import Triple, TripleRetriever, WalkRules, walk
from ark_jax.graph.triples import Triples
from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder

ROWS = [
    ("m.1", "film.film.directed_by", "m.2"),
    ("m.1", "film.film.starring", "m.3"),
    ("m.4", "film.film.directed_by", "m.2"),
]
NAMES = {"m.1": "Kismet", "m.2": "William Dieterle", "m.4": "The Searching Wind"}  # m.3 has none
QUESTIONS = ["Who directed Kismet?", "Who plays in Kismet?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Router with two different towers."""
    root = tmp_path_factory.mktemp("export")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        towers = []
        for seed in (0, 1):
            weights = tiny.tensors("bert", seed)
            path = tiny.write(root / str(seed), "bert", tokenizer="cls", weights=weights)
            tiny.sentence_transformer(path, pooling="mean", prompts={"query": "Find: "})
            towers.append(Retriever.from_pretrained(str(path)))
        DualEncoder(*towers).save_pretrained(root / "export")
    return root / "export"


def test_the_retriever_ranks_named_triples_by_cosine(folder, mesh):
    graph = Triples.from_triples(ROWS, NAMES)
    retriever = TripleRetriever.from_pretrained(folder, graph)
    results = retriever.search(QUESTIONS, k=2, rules=WalkRules(hops=1))
    towers = DualEncoder.from_pretrained(folder)
    texts = [
        "Kismet | directed by | William Dieterle",
        "Kismet | starring | m.3",
        "The Searching Wind | directed by | William Dieterle",
    ]
    wanted = (
        towers.query.encode(QUESTIONS, kind="query")
        @ towers.document.encode(texts, kind="document").T
    )
    named = [
        ("Kismet", "film.film.directed_by", "William Dieterle"),
        ("Kismet", "film.film.starring", "m.3"),
        ("The Searching Wind", "film.film.directed_by", "William Dieterle"),
    ]
    for triples, cosines in zip(results, wanted, strict=True):
        best = np.argsort(-cosines)[:2]
        assert [triple[:3] for triple in triples] == [named[i] for i in best]
        np.testing.assert_allclose([t.score for t in triples], cosines[best], atol=1e-6)
        assert all(isinstance(triple, Triple) for triple in triples)
    rows, scores = retriever.search_rows(QUESTIONS, k=2, rules=WalkRules(hops=1))
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    assert [[named[row] for row in part] for part in rows] == [[t[:3] for t in p] for p in results]
    assert scores.tolist() == [[triple.score for triple in part] for part in results]


def test_a_search_of_two_hops_walks_the_graph(folder, mesh):
    """Its scores are those of `walk` over the cosines of all triples, from what is named."""
    graph = Triples.from_triples(ROWS, NAMES)
    retriever = TripleRetriever.from_pretrained(folder, graph)
    rows, cosines = retriever.search_rows(QUESTIONS, k=3, rules=WalkRules(hops=1))
    named = frozenset(look_up(["Kismet"], graph.nodes).nodes["Kismet"])
    for share in (0.7, 0.2):
        rules = WalkRules(2, share)
        hits, scores = retriever.search_rows(QUESTIONS, k=2, rules=rules)
        assert hits.shape == (2, 2) and (np.diff(scores) <= 0).all()
        for place in range(2):
            of_row = np.empty(3)
            of_row[rows[place]] = cosines[place]
            nearest = (rows[place], cosines[place])
            wanted, best = walk(graph, lambda r, c=of_row: c[r], *nearest, rules, named)
            assert hits[place].tolist() == wanted[:2].tolist()
            np.testing.assert_allclose(scores[place], best[:2], atol=1e-6)


def test_a_graph_and_its_index_can_be_given_as_paths(folder, tmp_path, mesh):
    (tmp_path / "kb.txt").write_text("".join("|".join(row) + "\n" for row in ROWS))
    retriever = ark_jax.TripleRetriever.from_pretrained(
        folder, tmp_path / "kb.txt", tmp_path / "index"
    )
    assert len(retriever.search(["Who?"])[0]) == 3
    assert (tmp_path / "index" / "manifest.json").is_file()
    retriever.graph.save(tmp_path / "saved")
    again = TripleRetriever.from_pretrained(folder, tmp_path / "saved", tmp_path / "index")
    assert again.search(QUESTIONS) == retriever.search(QUESTIONS)


def test_no_questions_give_no_results(folder, mesh):
    retriever = TripleRetriever.from_pretrained(folder, Triples.from_triples(ROWS))
    assert retriever.search([]) == []


def test_a_search_for_no_triples_is_refused(folder, mesh):
    retriever = TripleRetriever.from_pretrained(folder, Triples.from_triples(ROWS))
    with pytest.raises(ValueError, match="k=0: must be at least 1"):
        retriever.search(QUESTIONS, k=0)


def test_missing_files_and_empty_graphs_are_named(folder, tmp_path, mesh):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        TripleRetriever.from_pretrained(tmp_path / "nowhere", Triples.from_triples(ROWS))
    with pytest.raises(BadInput, match=r"kb\.txt"):
        TripleRetriever.from_pretrained(folder, tmp_path / "kb.txt")
    with pytest.raises(ValueError, match="the graph has no triple to search"):
        TripleRetriever.from_pretrained(folder, Triples.from_triples([]))
