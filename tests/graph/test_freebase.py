"""Questions of WebQSP, CWQ and GrailQA as their authors publish them, over a part of Freebase."""

import json

import pytest

from ark_jax.graph import triple_check
from ark_jax.graph.linked_questions import link
from ark_jax.graph.triple_questions import TripleQuestion, read_questions
from ark_jax.graph.triples import Triples

WEBQSP = {
    "Version": "1.0",
    "FreebaseVersion": "2015-08-09",
    "Questions": [
        {
            "QuestionId": "WebQTest-0",
            "RawQuestion": "what does jamaican people speak?",
            "Parses": [
                {
                    "TopicEntityMid": "m.03_r3",
                    "InferentialChain": ["location.country.languages_spoken"],
                    "Sparql": "",
                    "Answers": [
                        {
                            "AnswerType": "Entity",
                            "AnswerArgument": "m.01428y",
                            "EntityName": "Patois",
                        },
                        {"AnswerType": "Value", "AnswerArgument": "1962", "EntityName": None},
                    ],
                },
                {"TopicEntityMid": None, "Answers": []},
            ],
        }
    ],
}
CWQ = [
    {
        "ID": "WebQTest-0_a",
        "question": "What is spoken where it is hot?",
        "sparql": "SELECT ?x WHERE { FILTER (?x != ns:m.09) ns:m.03_r3 ns:a.b.c ?x . }",
        "answers": [{"answer_id": "m.01428y", "answer": "Patois", "aliases": ["Jamaican"]}],
    }
]
GRAILQA = [
    {
        "qid": 2102902009000,
        "question": "which language is of jamaica",
        "answer": [
            {"answer_type": "Entity", "answer_argument": "m.01428y", "entity_name": "Patois"}
        ],
        "graph_query": {
            "nodes": [
                {"nid": 0, "node_type": "class", "id": "language.human_language"},
                {"nid": 1, "node_type": "entity", "id": "m.03_r3"},
            ],
            "edges": [],
        },
        "sparql_query": "",
        "level": "zero-shot",
    }
]
PUBLISHED = {
    "WebQSP": (
        WEBQSP,
        TripleQuestion(
            "WebQTest-0",
            "what does jamaican people speak?",
            ("Patois", "1962"),
            ("m.03_r3",),
            "",
            ("m.01428y", "1962"),
        ),
    ),
    "CWQ": (
        CWQ,
        TripleQuestion(
            "WebQTest-0_a", CWQ[0]["question"], ("Patois",), ("m.03_r3",), "", ("m.01428y",)
        ),
    ),
    "GrailQA": (
        GRAILQA,
        TripleQuestion(
            "2102902009000",
            GRAILQA[0]["question"],
            ("Patois",),
            ("m.03_r3",),
            "zero-shot",
            ("m.01428y",),
        ),
    ),
}
NT = "http://rdf.freebase.com/ns"
TRIPLES = {
    "graph.tsv": "m.03_r3\tlocation.country.languages_spoken\tm.01428y\n"
    'm.01428y\ttype.object.name\t"Patoá"@pt\n'
    'm.01428y\ttype.object.name\t"Patois"@en\n'
    "m.03_r3\ttype.object.name\tJamaica\n"
    "m.03_r3\tcommon.topic.alias\tLand of wood\n",
    "graph.nt": f"<{NT}/m.03_r3> <{NT}/location.country.languages_spoken> <{NT}/m.01428y> .\n"
    f'<{NT}/m.01428y> <{NT}/type.object.name> "Patois"@en .\n'
    f'<{NT}/m.03_r3> <{NT}/type.object.name> "Jamaica"@en .\n',
}


def save(path, value, **options):
    path.write_text(value if isinstance(value, str) else json.dumps(value, **options))
    return path


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", PUBLISHED)
def test_questions_are_read_as_they_are_published(tmp_path, name, indent):
    rows, wanted = PUBLISHED[name]
    path = save(tmp_path / "test.json", rows, indent=indent)
    questions, findings = read_questions(path)
    assert (questions, list(findings.problems)) == ([wanted], [])
    lines, is_good = triple_check.check(str(path))
    assert f"format: {name} questions over a graph of triples" in lines
    assert is_good


@pytest.mark.parametrize("name", TRIPLES)
def test_names_of_freebase_are_no_facts(tmp_path, name):
    graph, findings = Triples.examine([save(tmp_path / name, TRIPLES[name])])
    assert not findings.problems
    assert len(graph) == 1
    assert sorted(map(graph.nodes.name, range(len(graph.nodes)))) == ["Jamaica", "Patois"]
    assert "name nodes of Freebase; they are names" in str(findings.remarks)
    for rows, _ in PUBLISHED.values():
        questions, _ = read_questions(save(tmp_path / "test.json", rows))
        linked = link(questions, graph)
        assert linked.counts["topics_absent"] == 0
        assert linked.answer_nodes(0).tolist() == [graph.nodes.index("m.01428y")]


def test_a_file_of_names_may_name_freebase(tmp_path):
    triples = save(tmp_path / "graph.tsv", TRIPLES["graph.tsv"].split("\n")[0] + "\n")
    names = save(tmp_path / "names.tsv", "m.03_r3\tJamaica\nm.01428y\tPatois\n")
    graph, _ = Triples.examine([triples], names)
    assert graph.nodes.find("Patois") == [graph.nodes.index("m.01428y")]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (WEBQSP["Questions"][0] | {"Parses": "x"}, "Parses: is a string in row 1; write a list"),
        (WEBQSP["Questions"][0] | {"RawQuestion": 3}, "RawQuestion: is a number"),
        (CWQ[0] | {"answers": [{"answer": "Patois"}]}, "answers: item 1: answer_id is missing"),
        (CWQ[0] | {"answers": 5}, "answers: is a number"),
        (CWQ[0] | {"sparql": 3}, "sparql: is a number"),
        (GRAILQA[0] | {"graph_query": None}, "graph_query: is missing or no object in row 1; copy"),
        (GRAILQA[0] | {"answer": [5]}, "answer: item 1 is a number"),
    ],
)
def test_a_broken_row_is_named_by_its_own_field(tmp_path, row, fault):
    questions, findings = read_questions(save(tmp_path / "test.json", [row]))
    assert not questions
    assert f"test.json:1: {fault}" in str(findings.problems[0])


def test_a_topic_of_the_wrong_type_is_named(tmp_path):
    parse = {"TopicEntityMid": 7, "Answers": []}
    row = WEBQSP["Questions"][0] | {"Parses": [parse]}
    _, findings = read_questions(save(tmp_path / "test.json", [row]))
    assert "TopicEntityMid" in str(findings.problems[0])
