"""Graphs of triples from files of every format; each fault is one line with file, row and fix."""

import gzip
import json

import networkx as nx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.paths import DATA

from ark_jax.data import readers
from ark_jax.data.problems import Reading
from ark_jax.data.records import BadInput
from ark_jax.graph import triple_check, triple_files
from ark_jax.graph.triple_files import FREEBASE_NAMES
from ark_jax.graph.triple_questions import read_questions
from ark_jax.graph.triples import Triples

FACTS = [
    ("Paris", "capital_of", "France"),
    ("France", "contains", "Paris"),
    ("Paris", "twin_of", "Paris"),
    ("Comedy", "is", "comedy"),
    ("Comedy", "was", "The Comedy"),
    ("Paris", "capital_of", "France"),
]
IRI = "http://x.org/"
NSM = "nsm_format/webqsp_dev_simple.jsonl"


def joined(separator: str) -> str:
    return "".join(separator.join(fact) + "\n" for fact in FACTS)


def objects(names) -> str:
    return "".join(json.dumps(dict(zip(names, fact, strict=True))) + "\n" for fact in FACTS)


@pytest.mark.parametrize(
    "name, text",
    [
        ("kb.tsv", joined("\t")),
        ("kb.txt", joined("|")),
        ("bom.txt", "\ufeff" + joined("\t").replace("\n", "\r\n")),
        ("kb.csv", joined(",")),
        ("header.csv", "Subject,Predicate,Object\n" + joined(",").replace(",is,", ',"is",')),
        ("kb.jsonl", objects(("head", "relation", "tail"))),
        ("rdf.jsonl", objects(("subject", "predicate", "object"))),
        ("rog.jsonl", json.dumps({"id": "q", "graph": FACTS})),
        ("nsm.jsonl", json.dumps({"id": "q", "subgraph": {"tuples": FACTS}})),
    ],
)
def test_every_text_format_gives_the_same_graph(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    graph = Triples.read(tmp_path / name)
    assert list(graph) == list(Triples.from_triples(FACTS))
    assert graph.duplicates == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_parquet_gives_the_same_graph(kind, tmp_path):
    heads, relations, tails = (pa.array(column, kind) for column in zip(*FACTS, strict=True))
    path = tmp_path / "kb.parquet"
    pq.write_table(
        pa.table({"tail": tails, "head": heads, "relation": relations.dictionary_encode()}), path
    )
    assert list(Triples.read(path)) == list(Triples.from_triples(FACTS))


def test_integers_in_parquet_are_read_as_names(tmp_path):
    path = tmp_path / "kb.parquet"
    pq.write_table(pa.table({"head": [1, 2], "relation": [0, 0], "tail": [2, 1]}), path)
    assert list(Triples.read(path)) == [("1", "0", "2"), ("2", "0", "1")]


def test_a_parquet_dictionary_may_hold_unused_relations(tmp_path):
    path = tmp_path / "kb.parquet"
    relation = pa.DictionaryArray.from_arrays([2, 0, 2], ["r", "unused", "s"])
    table = pa.table({"head": ["a", "b", "c"], "relation": relation, "tail": ["b", "c", "a"]})
    pq.write_table(pa.concat_tables([table, table]), path, row_group_size=2)
    graph = Triples.read(path)
    assert graph.relations.ids.to_pylist() == ["s", "r"] and graph.duplicates == 3
    assert list(graph) == list(Triples.from_triples(zip(*table.to_pydict().values(), strict=True)))
    (tmp_path / "more.tsv").write_text("x\tr\ty\n")
    assert len(Triples.read(path, tmp_path / "more.tsv")) == 4


@pytest.mark.parametrize("name", ["a b", " a", "Ä", "\u200ba", "東京", "é\u3000", "x\x7f", "\x01x"])
def test_only_valid_names_are_read_from_parquet(name, tmp_path):
    path = tmp_path / "a.parquet"
    faulty = ["\u200b", "", "\u3000", "a\tb", "\n", "\x00a"]
    heads = [name, *faulty, None, "b"]
    pq.write_table(
        pa.table({"head": heads, "relation": ["r"] * 8 + [name], "tail": [name] * 9}), path
    )
    graph, findings = Triples.examine([path])
    assert set(graph) == {(name, "r", name), ("b", name, name)}
    assert [problem.line for problem in findings.problems] == [2, 3, 4, 5, 6, 7, 8]


def test_the_graphs_of_several_questions_are_merged(tmp_path):
    rows = question_rows()
    (tmp_path / "rog.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rog.parquet")
    for path in (tmp_path / "rog.jsonl", tmp_path / "rog.parquet"):
        assert triple_files.recognises(path)
        graph, findings = Triples.examine([path])
        assert list(graph) == list(Triples.from_triples(FACTS)) and graph.duplicates == 2
        assert "2 graphs, one a question, are read as one" in str(findings.remarks[0])
        assert len(read_questions(path)[0]) == 2


def test_faulty_triples_in_the_graph_of_a_question_are_reported(tmp_path):
    rows = question_rows()
    rows[1]["graph"] = [["a", "r"], ["a", "", "b"], ["x", "r", "y"]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rog.parquet")
    graph, findings = Triples.examine([tmp_path / "rog.parquet"])
    assert ("x", "r", "y") in list(graph)
    short, empty = map(str, findings.problems)
    assert ":2: graph: row 2 has a triple that is not a list of three" in short
    assert ":2: relation: is empty in row" in empty


def question_rows() -> list[dict]:
    """Two questions in RoG's form; their graphs are two overlapping parts of FACTS."""
    return [
        {"id": "1", "question": "q", "answer": ["b"], "q_entity": ["a"], "graph": FACTS[:4]},
        {"id": "2", "question": "q", "answer": ["b"], "q_entity": ["a"], "graph": FACTS[3:]},
    ]


@pytest.fixture
def numbered(tmp_path):
    """Writes one numbered triple beside files that name two entities and one relation."""
    (tmp_path / "entities.txt").write_text("m.1\nm.2\n")
    (tmp_path / "relations.txt").write_text("r\n")
    path = tmp_path / "data.jsonl"

    def write_triple(triple):
        path.write_text(json.dumps({"subgraph": {"tuples": [triple]}}))
        return path

    return write_triple


def test_numbered_triples_refer_to_lines_of_the_name_files(numbered):
    assert list(Triples.read(numbered([0, 0, 1]))) == [("m.1", "r", "m.2")]


def test_a_number_beyond_the_name_files_is_refused(numbered):
    with pytest.raises(BadInput, match=r"data\.jsonl:1: subgraph\.tuples\[0\]: \[0, 0, 2\] names"):
        Triples.read(numbered([0, 0, 2]))


@pytest.mark.parametrize("suffix", [".nt", ".nt.gz"])
def test_n_triples_keep_languages_and_datatypes(suffix, tmp_path):
    pytest.importorskip("pyoxigraph", reason="pip install 'ark-jax[graphs]' reads N-Triples")
    label = "<http://www.w3.org/2000/01/rdf-schema#label>"
    integer = "<http://www.w3.org/2001/XMLSchema#integer>"
    text = f'<{IRI}a> {label} "Köln"@de .\n<{IRI}a> {label} "Cologne"@en .\n'
    text += f'<{IRI}a> <{IRI}p> "5"^^{integer} .\n<{IRI}a> <{IRI}p> "5" .\n'
    text += f'_:b <{IRI}p> "a\\tb" .\n'
    path = tmp_path / f"kb{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix == ".nt.gz" else text.encode())
    graph = Triples.read(path)
    assert {tail for _, _, tail in graph} == {
        '"Köln"@de',
        '"Cologne"@en',
        f'"5"^^{integer}',
        '"5"',
        '"a\\tb"',
    }
    assert graph.find("Cologne")[0] == graph.nodes.index(f"{IRI}a")
    assert graph.nodes.name(graph.nodes.index(f"{IRI}a")) == "Köln"
    assert len(graph.find("5")) == 2
    path = tmp_path / "bad.nt"
    path.write_text(f"<{IRI}a> <{IRI}p> .\n" + text, encoding="utf-8")
    facts, findings = Triples.examine([path])
    assert list(facts) == list(graph)
    assert [str(p)[len(str(path)) :][:20] for p in findings.problems] == [":1: is not N-Triples"]
    path.write_bytes(f'<{IRI}a> <{IRI}p> "'.encode() + b'\xff" .\n')
    with pytest.raises(BadInput, match=r"bad\.nt:1: Invalid UTF-8.*save the file as UTF-8"):
        Triples.read(path)


@pytest.fixture
def named_files(tmp_path):
    """A graph of ids, and a file of names: 3 has two names, 1 and 2 share one, 4 has none."""
    facts, names = tmp_path / "kb.tsv", tmp_path / "names.tsv"
    facts.write_text("1\tr\t2\n1\tr\t3\n1\tr\t4\n")
    names.write_text("1\tParis\tLutetia|Paname\n2\tParis\n3\tLyon\n3\tLugdunum\n")
    return facts, names


def test_names_and_aliases_are_read_from_a_separate_file(named_files):
    facts, names = named_files
    graph = Triples.read(facts, names=names)
    assert graph.find("Paris") == [0, 1] and graph.find("Paname") == [0]
    assert graph.find("Lugdunum") == graph.find("Lyon") == [2]
    assert (graph.nodes.unnamed, graph.nodes.shared_names) == (1, 1)


def test_second_missing_and_shared_names_are_remarked(named_files):
    facts, names = named_files
    _, findings = Triples.examine([facts], names)
    remarks = "\n".join(map(str, findings.remarks))
    assert "names.tsv:4: name: '3' of line 3 has a second name; it becomes an alias" in remarks
    assert "1 ids have no name" in remarks and "1 names belong to several ids" in remarks


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("a.tsv", b"a\tr\tb\na\tr\n", r"a\.tsv:2: 2 field\(s\), a triple has three; write"),
        ("a.tsv", b"a\tr\tb\na\tr\tb\tc\td\n", r"a\.tsv:2: 5 field\(s\).*no name may hold a tab"),
        ("a.txt", b"a|r|b\na||b\n", r"a\.txt:2: relation: is empty; fill it in"),
        ("a.txt", b"a|r|b\na|r|b\tc\n", r"a\.txt:2: tail: 'b\\tc' holds a tab"),
        ("a.csv", b'a,r,b\na,r,"b\n', r"a\.csv:2: the row is broken CSV"),
        ("a.tsv", b"\xc3\xa9\tr\tb\na\tr\t\xff\n", r"a\.tsv:2: byte 5 of line 2 \(0xff\)"),
        ("a.tsv", b"a\tr\0\tb\n", r"a\.tsv: is not text"),
        ("a.tsv", b"", r"a\.tsv: is empty"),
        ("a.csv", b"head,relation,tail\n", r"a\.csv: holds no triple; give another file"),
        ("a.jsonl", b'{"head": "a", "relation": 7, "tail": "b"}', r":1: relation: is a number"),
        ("a.jsonl", b'{"head": "a", "tail": "b"}', r":1: has the fields 'head', 'tail'.*name them"),
        ("a.jsonl", b'{"graph": [["a", "r"]]}', r":1: graph\[0\]: is not a list of three"),
        ("a.parquet", b"PAR1", r"a\.parquet: cannot be read as Parquet"),
    ],
)
def test_a_faulty_row_is_reported_once_with_its_line(name, data, words, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=words) as raised:
        Triples.read(tmp_path / name)
    assert len(raised.value.problems) == 1


def test_faults_in_parquet_are_reported_by_row(tmp_path):
    path = tmp_path / "a.parquet"
    table = {"head": ["a", "", "c", "d"], "relation": ["r"] * 4, "tail": ["b", "x", None, "e\t"]}
    pq.write_table(pa.table(table), path)
    graph, findings = Triples.examine([path])
    assert list(graph) == [("a", "r", "b")]
    for problem, words in zip(
        findings.problems,
        (":2: head: is empty in row 2", ":3: tail: is null in row 3", ":4: tail: 'e\\t' holds"),
        strict=True,
    ):
        assert words in str(problem)


def test_quotation_marks_in_tsv_are_kept_with_a_remark(tmp_path):
    (tmp_path / "a.tsv").write_text('"Great Guy"\tr\tb\n')
    graph, findings = Triples.examine([tmp_path / "a.tsv"])
    assert list(graph) == [('"Great Guy"', "r", "b")]
    assert "1 rows have a field in quotes" in str(findings.remarks[0])


def test_a_missing_file_or_plain_folder_is_named(tmp_path):
    for path, words in ((tmp_path / "absent.tsv", "does not exist"), (tmp_path, "not a saved")):
        with pytest.raises((BadInput, FileNotFoundError), match=words):
            Triples.read(path)


def test_the_graph_of_metaqa_is_read_completely():
    folder = DATA / "kg" / "metaqa"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to read a real graph")
    parts = [folder / f"kb_{part}.tsv" for part in ("train", "dev", "test", "test_old")]
    names, relations = (folder / f"kb_{kind}2text.txt" for kind in ("entity", "relation"))
    graph = Triples.read(*parts, names=names, relation_names=relations)
    counts = graph.summary()
    lines = [line for path in parts for line in path.read_text().splitlines()]
    assert counts["triples"] == len(set(lines)) == 129_413
    assert counts["duplicates"] == len(lines) - 129_413
    assert (counts["relations"], counts["without_name"]) == (9, 1)
    assert counts["hubs"] == [("Drama", 4_016), ("Comedy", 3_759), ("Horror", 1_148)]
    for name in ("Comedy", "comedy", "The Comedy"):
        assert [graph.nodes.name(node) for node in graph.find(name)] == [name]
    directed = graph.relations.find("directed by")[0]
    rows = [
        row for row in graph.rows(graph.find("Joel Zwick")[0]) if graph.relation[row] == directed
    ]
    assert {graph.nodes.name(graph.head[row]) for row in rows} == {"My Big Fat Greek Wedding"}


@pytest.mark.parametrize("name", ["pathquestion/2H-kb.txt", "pathquestion/PQL2-KB.txt", NSM])
def test_counts_of_other_real_graphs_match_networkx(name):
    path = DATA / "kg" / name
    if not path.is_file():
        pytest.skip(f"{path} is absent: set ARK_DATA to read a real graph")
    lines = path.read_text(encoding="utf-8").splitlines()
    if name == NSM:
        rows = [tuple(row) for line in lines for row in json.loads(line)["subgraph"]["tuples"]]
    else:
        rows = [tuple(line.split("\t")) for line in lines if line]
    rows = [row for row in rows if row[1] not in FREEBASE_NAMES]  # those give names
    expected = nx.MultiDiGraph()
    expected.add_edges_from((head, tail, relation) for head, relation, tail in rows)
    graph = Triples.read(path)
    assert len(graph) == expected.number_of_edges() == len(rows) - graph.duplicates
    assert len(graph.nodes) == len(expected)
    assert len(graph.relations) == len({relation for _, relation, _ in rows})
    ids = graph.nodes.ids.to_pylist()
    assert dict(zip(ids, graph.degrees().tolist(), strict=True)) == dict(expected.degree())
    for node in range(0, len(ids), 97):
        ends = [(graph.head[row], graph.tail[row]) for row in graph.rows(node)]
        around = {ids[b if a == node else a] for a, b in ends}
        assert around == set(nx.all_neighbors(expected, ids[node]))


def test_the_files_of_a_pattern_or_folder_are_read_as_one_graph(tmp_path):
    write_two_parts(tmp_path)
    for path in (tmp_path, tmp_path / "kb_*.tsv", str(tmp_path / "*")):
        graph = Triples.read(path)
        assert list(graph) == list(Triples.from_triples(FACTS)) and graph.duplicates == 2
    assert triple_files.recognises(tmp_path / "kb_*.tsv") and triple_files.recognises(tmp_path)


def test_a_pattern_without_files_is_refused(tmp_path):
    write_two_parts(tmp_path)
    assert not triple_files.recognises(tmp_path / "x*.tsv")
    with pytest.raises(BadInput, match=r"x\*\.tsv: matches no file; mend the pattern"):
        Triples.read(tmp_path / "x*.tsv")


def test_a_folder_that_also_holds_questions_is_refused_with_a_pattern(tmp_path):
    write_two_parts(tmp_path)
    (tmp_path / "2hop.txt").write_text("who is [Paris]\tFrance\n")
    message = r"holds files without triples \(2hop\.txt\); give .*"
    with pytest.raises(BadInput, match=message) as error:
        Triples.read(tmp_path)
    assert str(error.value.problems[0]).endswith(f"give {tmp_path}/kb_*.tsv")


def test_a_folder_without_a_fitting_pattern_is_refused_with_its_files(tmp_path):
    write_two_parts(tmp_path)
    (tmp_path / "kb_names.tsv").write_text("1\tParis\n")
    with pytest.raises(BadInput, match=r"give kb_a\.tsv, kb_b\.tsv"):
        Triples.read(tmp_path)


def write_two_parts(folder):
    """Two files with overlapping parts of FACTS."""
    for name, facts in (("kb_a.tsv", FACTS[:3]), ("kb_b.tsv", FACTS[2:])):
        (folder / name).write_text("".join("\t".join(fact) + "\n" for fact in facts))


def test_a_file_of_questions_is_refused_as_a_graph(tmp_path):
    path = tmp_path / "PQ.txt"
    path.write_text("the son of x ?\ta(a/)\tx#son#a#<end>#a\n" * 3)
    assert not triple_files.recognises(path)
    with pytest.raises(BadInput, match=r"PQ\.txt: holds questions, not triples; give the graph"):
        Triples.read(path)


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.tsv", "id\ttitle\ttext\n1\tT\tA text.\n"),
        ("a.jsonl", '{"id": "1", "text": "A text."}\n'),
        ("a.txt", "A text of several words.\n"),
        ("a.csv", "id,title,text\n1,T,A text.\n"),
        ("a.tsv", "query-id\tcorpus-id\tscore\n1\t2\t1\n"),
        ("a.tsv", "query\tpos\tneg\n" + "what is a tide\tThe sea rises twice.\tIt fell.\n" * 3),
        ("a.txt", "A man rides.\tHe is outdoors, it seems.\tHe is at home.\n" * 2),
        ("a.tsv", "a tide\tthe sea that rises and falls twice a day\tthe moon\n" * 2),
        ("a.tsv", "潮とは\t海は一日に二度満ちる。\t月は丸い。\n"),
        ("a.txt", "git-add(1)\n'git add' [-v]\n\t\t[--force | -f]\n\t\t[--patch]\n\t\t[--edit]\n"),
    ],
)
def test_documents_are_not_recognised_as_a_graph(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    assert not triple_files.recognises(tmp_path / name)


SENTENCES = (
    "What year did it burn\tThe mill burned in 1802 at night\tThe kiln stood by the lake there\n"
    "Who built the old mill\tAda built it with her own hands\tNobody knows who built the kiln\n"
)


@pytest.mark.parametrize(
    "text", [SENTENCES, f"query\tpos\tneg\n{SENTENCES}", "anchor\tpositive\tnegative\na\tb\tc\n"]
)
def test_three_columns_of_sentences_are_not_recognised_as_a_graph(tmp_path, text):
    (tmp_path / "train.tsv").write_text(text)
    assert not triple_check.are_about_graph(str(tmp_path / "train.tsv"))
    assert readers.load(tmp_path / "train.tsv").questions


def test_triples_with_names_of_several_words_are_recognised_as_a_graph(tmp_path):
    (tmp_path / "train.tsv").write_text("the mill\tis part of\tthe old harbour of Kiel\n")
    assert triple_check.are_about_graph(str(tmp_path / "train.tsv"))


TRIPLE = {"subject": "mill", "predicate": "burned", "object": "1802"}


def test_triples_that_fit_documents_too_are_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**TRIPLE, "text": "It burned."}))
    lines, is_good = triple_check.check(str(path))
    assert is_good and "its rows fit documents too" in lines[0]
    assert readers.load(path, reading=Reading("", "text=text")).documents[0].text == "It burned."


def test_triples_without_text_are_not_reported_as_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(TRIPLE))
    assert "fit documents" not in " ".join(triple_check.check(str(path))[0])
