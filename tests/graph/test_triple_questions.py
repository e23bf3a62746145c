"""Questions of every format, and their links to a graph."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.paths import DATA

from ark_jax.graph.linked_questions import link
from ark_jax.graph.triple_questions import TripleQuestion, read_questions
from ark_jax.graph.triple_rows import is_questions
from ark_jax.graph.triples import Triples

KG = DATA / "kg"
TEXT = "what movies did Ada Byron act in"


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def read(path, data) -> list[TripleQuestion]:
    questions, findings = read_questions(write(path, data))
    assert not findings.problems, findings.problems[0]
    return questions


def test_questions_in_metaqa_format_are_read(tmp_path):
    rows = "what movies did [Ada Byron] act in\tA|B|A\r\n\nwho knows [[REC]] and [C]\tD\n"
    assert read(tmp_path / "1hop.txt", rows) == [
        TripleQuestion("1hop:1", TEXT, ("A", "B"), ("Ada Byron",)),
        TripleQuestion("1hop:3", "who knows [REC] and C", ("D",), ("[REC]", "C")),
    ]
    assert read(tmp_path / "plain.txt", "who knows Ada?\n")[0].entities == ()


def test_questions_in_pathquestion_format_are_read(tmp_path):
    rows = "the son of x ?\ta(a/b_(c)/)\tx#son#a#<end>#a\n who ?\tb_(c)(a/b_(c)/)\ty#r#b_(c)\n"
    path = tmp_path / "PQ.txt"
    assert read(path, rows) == [
        TripleQuestion("PQ:1", "the son of x ?", ("a", "b_(c)"), ("x",)),
        TripleQuestion("PQ:2", "who ?", ("a", "b_(c)"), ("y",)),
    ]
    assert is_questions(path)


ROG = {"id": "q", "question": TEXT, "answer": ["A"], "q_entity": ["e"], "a_entity": ["A."]}
OF_ROG = [TripleQuestion("q", TEXT, ("A",), ("e",), "", ("A.",))]


def test_questions_in_our_form_are_read(tmp_path):
    row = {"id": "q", "question": TEXT, "answers": ["A"], "entities": ["e"], "group": "g"}
    assert read(tmp_path / "a.jsonl", row) == [TripleQuestion("q", TEXT, ("A",), ("e",), "g")]


def test_questions_of_rog_are_read_from_json(tmp_path):
    assert read(tmp_path / "a.json", [ROG]) == OF_ROG


def test_questions_of_rog_are_read_from_parquet(tmp_path):
    table = {name: [value] for name, value in ROG.items()} | {"graph": [[["a", "r", "b"]]]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert read_questions(tmp_path / "a.parquet")[0] == OF_ROG


def test_questions_of_srtk_are_read(tmp_path):
    row = {"id": "q", "question": TEXT, "question_entities": ["e"], "answer_entities": ["A."]}
    wanted = TripleQuestion("q", TEXT, (), ("e",), "", ("A.",))
    assert read(tmp_path / "srtk.jsonl", row) == [wanted]


def test_questions_of_nsm_number_the_lines_of_the_entity_file(tmp_path):
    write(tmp_path / "entities.txt", "e0\ne1\n")
    answers = [{"kb_id": "m.1", "text": "A"}, {"kb_id": "1971", "text": None}]
    row = {"id": 7, "question": TEXT, "answers": answers, "entities": [1]}
    wanted = TripleQuestion("7", TEXT, ("A", "1971"), ("e1",), "", ("m.1", "1971"))
    assert read(tmp_path / "nsm.jsonl", row) == [wanted]


def test_questions_in_csv_are_read(tmp_path):
    table = 'Question,answers,entities\nwho?,"[""A"", ""B""]",Ada\n'
    assert read(tmp_path / "a.csv", table) == [TripleQuestion("a:2", "who?", ("A", "B"), ("Ada",))]


def test_each_question_file_becomes_a_group(tmp_path):
    for name in ("x/1hop.txt", "x/2hop.txt", "y/2hop.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "who is [A]\tB\n")
    questions, findings = read_questions(str(tmp_path / "x" / "*hop.txt"))
    assert [(q.id, q.group) for q in questions] == [("1hop:1", "1hop"), ("2hop:1", "2hop")]
    questions, findings = read_questions([tmp_path / "x/2hop.txt", tmp_path / "y/2hop.txt"])
    assert [q.group for q in questions] == ["x/2hop", "y/2hop"] and not findings.problems
    assert "matches no file" in str(read_questions(tmp_path / "*.tsv")[1].problems[0])


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("a.jsonl", '{"id": "1"}', ":1: question: is missing; add it"),
        ("a.jsonl", '{"question": "q", "answers": [""]}', ":1: answers: item 1 is empty; fill"),
        ("a.jsonl", '{"question": "q", "entities": [3]}', "item 1 is 3, no line of entities.txt"),
        ("a.jsonl", '{"question": "q", "entites": ["x"]}', "rename 'entites' to 'entities'"),
        ("a.jsonl", '{"id":"1","question":"q"}\n{"id":"1","question":"r"}', ":2: repeats '1' of "),
        ("a.txt", "who\tA\nwho\n", ":2: 1 field(s), the first line has 2; write as many"),
        ("a.txt", "who\tA\nwho\t \n", ":2: the answer is empty; fill it in"),
        ("a.txt", "a\tr\tb\n", ":1: is not a MetaQA or PathQuestion question; write JSONL"),
        ("a.txt", "", "a.txt: is empty"),
    ],
)
def test_a_faulty_question_is_reported_once(name, data, words, tmp_path):
    _, findings = read_questions(write(tmp_path / name, data))
    assert [words in str(problem) for problem in findings.problems] == [True]
    assert "does not exist" in str(read_questions(tmp_path / "absent")[1].problems[0])


def test_a_graph_is_not_recognised_as_questions(tmp_path):
    for text in ("a\tr\tb\n", "a|r|b\n", "A text.\n", "a\tr\tb#c#d\n", ""):
        assert not is_questions(write(tmp_path / "a.txt", text))


def graph() -> Triples:
    return Triples.from_triples(
        [("m.1", "r", "m.2"), ("m.3", "r", "m.4"), ("m.5", "r", "m.6")],
        {"m.1": "Paris", "m.2": "France", "m.3": "Paris", "m.4": "Texas", "m.5": "m.6"},
        {"m.2": ["Gaul"]},
    )


@pytest.fixture(scope="module")
def linked():
    """Five questions, linked: topics by name, in the text and by id, and unknown ones."""
    questions = [
        TripleQuestion("1", "q", ("France", "Gaul", "Spain"), ("m.3",)),
        TripleQuestion("2", "where is Paris?", ("Texas",)),
        TripleQuestion("3", "who?", ("Spain",)),
        TripleQuestion("4", "q", (), ("Parys", "Gaul", "m.6")),
        TripleQuestion("5", "q", ("Spain",), ("Gaul",), "", ("m.2",)),
    ]
    return link(questions, graph())


def nodes(*ids: str) -> tuple[int, ...]:
    known = graph().nodes.ids.to_pylist()
    return tuple(sorted(known.index(id) for id in ids))


def test_topics_are_linked_to_nodes(linked):
    wanted = [nodes("m.3"), nodes("m.1", "m.3"), (), nodes("m.2", "m.5"), nodes("m.2")]
    assert linked.topics == wanted


def test_answers_are_linked_to_nodes(linked):
    assert linked.answers[0] == (nodes("m.2"), nodes("m.2"), ())
    assert linked.answer_nodes(0).tolist() == list(nodes("m.2"))
    assert linked.answer_nodes(2).tolist() == []
    assert linked.answers[4] == (nodes("m.2"),)


def test_linked_and_absent_topics_and_answers_are_counted(linked):
    assert linked.counts == {
        "questions": 5,
        "topics_given": 5,
        "topics_absent": 1,
        "topics_from_text": 1,
        "without_topic": 1,
        "answers": 6,
        "answers_absent": 2,
        "without_answer_in_graph": 1,
    }
    assert "topics from text: 1" in linked.summary().splitlines()
    assert link([], graph()).counts["questions"] == 0


def test_absent_and_ambiguous_names_are_remarked(linked):
    assert linked.remarks == [
        "topic 'Parys' of question '4' is not in the graph; nearest: 'Paris'",
        "2 answers are not in the graph ('Spain' of '1', 'Spain' of '3'); each counts as a miss",
        "'Paris' may be 2 nodes, all are taken: m.1, m.3",
        "1 names are also ids of other nodes ('m.6'); they are read as names",
    ]


def test_the_number_of_remarks_is_limited():
    questions = [TripleQuestion(str(i), "q", (), (f"Parys {i}",)) for i in range(200)]
    remarks = link(questions, graph()).remarks
    assert len(remarks) == 6 and remarks[-1] == "195 more topics are not in the graph"
    assert remarks[0] == "topic 'Parys 0' of question '0' is not in the graph; nearest: 'Paris'"
    names = {f"m.{i}": "Paris" for i in range(9)}
    many = Triples.from_triples([(id, "r", id) for id in names], names)
    assert link([TripleQuestion("1", "where is Paris?", ("Rome",))], many).remarks == [
        "1 answers are not in the graph ('Rome' of '1'); each counts as a miss",
        "1 of 1 questions have no answer in the graph: check that they belong together",
        "'Paris' may be 9 nodes, all are taken: m.0, m.1, m.2, m.3, m.4 and 4 more",
    ]


@pytest.mark.skipif(not KG.is_dir(), reason=f"{KG} is absent: set ARK_DATA to read real questions")
def test_all_metaqa_questions_are_linked_to_nodes():
    folder = KG / "metaqa"
    parts = [folder / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]
    movies = Triples.read(*parts, names=folder / "kb_entity2text.txt")
    questions, findings = read_questions(str(folder / "*hop_dev.txt"))
    assert not findings.problems
    linked = link(questions, movies)
    assert linked.counts["questions"] == 9_992 + 14_872 + 14_274
    absent = ("topics_absent", "without_topic", "answers_absent")
    assert [linked.counts[name] for name in absent] == [0, 0, 0]
    assert len({q.group for q in questions}) == 3
    # Most topics are found without the brackets too.
    bare = [TripleQuestion(q.id, q.question) for q in questions[:: len(questions) // 1_000]]
    same = [a == b for a, b in zip(link(bare, movies).topics, linked.topics[::39], strict=True)]
    assert sum(same) > 0.98 * len(same)


@pytest.mark.skipif(not KG.is_dir(), reason=f"{KG} is absent: set ARK_DATA to read real questions")
def test_pathquestion_and_webqsp_questions_are_linked_to_nodes():
    folder = KG / "pathquestion"
    for graph_file, file, count in (
        ("2H-kb.txt", "PQ-2H.txt", 1_908),
        ("PQL2-KB.txt", "PQL-2H.txt", 1_594),
    ):
        questions, findings = read_questions(folder / file)
        assert is_questions(folder / file) and not is_questions(folder / graph_file)
        counts = link(questions, Triples.read(folder / graph_file)).counts
        assert len(questions) == counts["topics_given"] == count and not findings.problems
        assert counts["topics_absent"] == counts["answers_absent"] == 0
    path = KG / "nsm_format" / "webqsp_dev_simple.jsonl"
    questions, findings = read_questions(path)
    counts = link(questions, Triples.read(path)).counts
    assert len(questions) == 250 and not findings.problems
    assert counts["topics_absent"] == 4 and counts["without_answer_in_graph"] == 141
