"""Questions to paths: topics by name or from the text, a saved scorer, and what is wrong."""

import shutil

import jax
import numpy as np
import pytest
from support import tiny

import ark_jax
from ark_jax import layout
from ark_jax.data.records import BadInput
from ark_jax.graph.beam import BeamRules, search
from ark_jax.graph.path_retriever import Path, PathRetriever, StepSettings
from ark_jax.graph.steps import Steps, path_text
from ark_jax.graph.triples import Triples
from ark_jax.models.pairs import CrossEncoder

FACTS = [
    ("m.1", "film.film.directed_by", "m.2"),
    ("m.1", "film.film.starring", "m.3"),
    ("m.4", "film.film.directed_by", "m.2"),
    ("m.5", "film.film.starring", "m.3"),
]
NAMES = {
    "m.1": "Kismet",
    "m.2": "William Dieterle",
    "m.4": "The Searching Wind",
    "m.5": "Kismet",  # another film of this name
    "m.6": "Alone in the Dark",  # without a triple
}
QUESTIONS = ["Who directed Kismet?", "What else was directed by William Dieterle?"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Pair scorers of two heads: the cosine, and a sequence classifier."""
    root = tmp_path_factory.mktemp("scorers")
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        tiny.sentence_transformer(
            tiny.write(root / "base", "bert", tokenizer="cls"), pooling="mean"
        )
        for head in ("cosine", "linear"):
            CrossEncoder.from_pretrained(root / "base", head=head).save_pretrained(root / head)
    return root


def graph() -> Triples:
    return Triples.from_triples(FACTS, NAMES)


def test_the_retriever_gives_the_paths_of_beam_search_with_names(folders, mesh):
    facts = graph()
    retriever = ark_jax.PathRetriever.from_pretrained(folders / "linear", facts)
    kismets = [facts.nodes.index("m.1"), facts.nodes.index("m.5")]
    result = search(
        QUESTIONS[:1], [kismets], Steps(facts), retriever.scorer, BeamRules(beam=4, hops=2)
    )
    (paths,) = retriever.search(QUESTIONS[:1], [["Kismet"]], k=2, beam=4, hops=2)
    assert len(paths) == 2 and len(result.paths[0]) > 2 and retriever.prefilter is None
    for path, numbers in zip(paths, result.paths[0], strict=False):
        assert isinstance(path, Path) and path.topic == "Kismet"
        assert path.relations == tuple(map(retriever.steps.relation_name, numbers.steps))
        reached = retriever.steps.reach(numbers.topic, numbers.steps).tolist()
        assert path.entities == tuple(map(facts.nodes.name, reached))
        text = path_text("Kismet", [retriever.steps.names[s] for s in numbers.steps], ended=True)
        score = retriever.scorer.score([(QUESTIONS[0], text)])[0]
        assert path.score == numbers.score == pytest.approx(score, abs=1e-3)
    everything = retriever.search(QUESTIONS[:1], [["m.2"]], k=99, beam=99, hops=2)[0]
    assert ("inverse of film.film.directed_by",) in {path.relations for path in everything}
    assert "m.3" in {entity for path in everything for entity in path.entities}  # it has no name


def test_step_settings_are_read_from_the_models_folder(folders, tmp_path, mesh):
    folder = shutil.copytree(folders / "linear", tmp_path / "scorer")
    texts = lambda **options: set(
        PathRetriever.from_pretrained(folder, graph(), **options).steps.names
    )
    assert texts() == texts(inverse=True, by="last")
    StepSettings(inverse=False, by="whole").write(folder)
    assert texts() == texts(inverse=False, by="whole") != texts(inverse=True)
    assert texts(inverse=True, by="last") == set(Steps(graph()).names)


def test_a_broken_file_of_step_settings_is_refused(folders, tmp_path, mesh):
    folder = shutil.copytree(folders / "linear", tmp_path / "scorer")
    (folder / "path_steps.json").write_text('{"inverse": 1, "relations": "last"}')
    with pytest.raises(ValueError, match=r"path_steps.json: inverse=1, relations='last': must be"):
        PathRetriever.from_pretrained(folder, graph())


def test_without_topics_names_in_the_question_are_used(folders, mesh):
    retriever = PathRetriever.from_pretrained(folders / "linear", graph())
    questions = [*QUESTIONS, "Who knows?"]
    with_topics = retriever.search(questions, [["Kismet"], ["William Dieterle"], []], hops=1)
    assert retriever.search(questions, hops=1) == with_topics
    assert with_topics[0] and with_topics[1] and with_topics[2] == []
    assert retriever.search([]) == []


def test_paths_do_not_depend_on_the_other_questions(folders, mesh):
    """Products of another batch differ in their last digits; scores and paths do not."""
    retriever = PathRetriever.from_pretrained(folders / "linear", graph())
    together = retriever.search(QUESTIONS, hops=2)
    assert [retriever.search([question], hops=2)[0] for question in QUESTIONS] == together


def test_a_prefilter_chooses_which_paths_are_scored(folders, mesh):
    facts = Triples.from_triples([("topic", f"relation_{i}", f"end {i}") for i in range(40)])
    retriever = PathRetriever(
        CrossEncoder.from_pretrained(folders / "linear"),
        Steps(facts),
        CrossEncoder.from_pretrained(folders / "cosine"),
    )
    topics = [[facts.nodes.index("topic")]]
    result = retriever.search_paths(["relation 7"], topics, rules=BeamRules(hops=1, keep=8))
    assert (result.prefiltered, result.pairs) == (40, 8 + 5)
    texts = [path_text("topic", [name], ended=False) for name in retriever.steps.names[:40]]
    cosines = retriever.prefilter.score([("relation 7", text) for text in texts])
    best = set(np.argsort(-cosines, kind="stable")[:8].tolist())
    assert {path.steps[0] for path in result.paths[0]} <= best


def test_a_very_long_name_is_cut_and_scored(folders, mesh):
    long_name = "word " * 3000
    facts = Triples.from_triples(
        [("a", "r", "b"), ("a", "s " * 500, "c")], {"a": long_name.strip()}
    )
    retriever = PathRetriever.from_pretrained(folders / "linear", facts)
    paths = retriever.search(["Who?"], [["a"]], hops=1)[0]
    assert {path.entities for path in paths} == {("b",), ("c",)}


def test_a_topic_without_edges_has_no_path(folders, mesh):
    retriever = PathRetriever.from_pretrained(folders / "linear", graph())
    assert retriever.search(["Who?", "Who?"], [["Alone in the Dark"], []]) == [[], []]


def test_unknown_topics_and_invalid_arguments_are_refused(folders, mesh):
    retriever = PathRetriever.from_pretrained(folders / "linear", graph())
    message = "topic 'Kismett' of question 'Who\\?' is not in the graph; .* nearest: 'Kismet'"
    with pytest.raises(ValueError, match=message):
        retriever.search(["Who?"], [["Kismett"]])
    with pytest.raises(ValueError, match="give a list for each question"):
        retriever.search(["Who?"], ["Kismet"])
    with pytest.raises(ValueError, match="1 questions and 2 lists of topics"):
        retriever.search(["Who?"], [["Kismet"], []])
    with pytest.raises(ValueError, match="k=0: must be at least 1"):
        retriever.search(["Who?"], k=0)
    with pytest.raises(ValueError, match="beam=0: must be at least 1"):
        retriever.search(["Who?"], beam=0)


def test_missing_files_and_models_are_named(folders, tmp_path, mesh):
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        PathRetriever.from_pretrained(tmp_path / "nowhere", graph())
    with pytest.raises(BadInput, match=r"kb\.txt"):
        PathRetriever.from_pretrained(folders / "linear", tmp_path / "kb.txt")
    with pytest.raises(ValueError, match="neither a saved pair scorer nor a sequence classifier"):
        PathRetriever.from_pretrained(folders / "base", graph())
