"""Each format is read as its publishers write it."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.corpora import corpora
from support.input_files import ASKED, DOCUMENT, HOTPOT, MUSIQUE, SHEETS, STORY, A, plain, write

from ark_jax.__main__ import _main
from ark_jax.data import readers
from ark_jax.data.formats import beir
from ark_jax.data.records import Corpus, Document, Question


def test_plain_files_with_unusual_line_breaks_are_read(tmp_path):
    second = '{"id": "e", "text": "a\u2028b\x85c"}'
    first = b"\xef\xbb\xbf" + DOCUMENT.encode().replace(b"\n", b"\r\n")
    write(tmp_path, plain(first + b"\r\n" + second.encode()))
    assert readers.load(tmp_path) == Corpus(
        [Document("d", "T", "The mill burned in 1802."), Document("e", "", "a\u2028b\x85c")],
        [Question("q", "When?", ("1802",), ("d",))],
        "plain",
    )


def test_longbench_rows_with_equal_contexts_share_a_document(tmp_path):
    burned = "The mill burned."
    rows = [
        {"_id": "1", "input": "When?", "context": burned, "answers": ["1802", "1802", "in 1802"]},
        {"_id": "2", "input": "What?", "context": burned, "answers": "a mill"},
        {"_id": "3", "input": "Who?", "context": "Nobody.", "answer": "none", "label": 4},
    ]
    write(
        tmp_path,
        {"f.jsonl": "\n".join(map(json.dumps, rows)), "f.json": json.dumps(rows, indent=2)},
    )
    # First 16 digits of `printf 'The mill burned.' | sha256sum`, and of 'Nobody.'
    mill, nobody = "42326e082cbba483", "f1908ed21e5e6032"
    assert (
        readers.load(tmp_path / "f.jsonl")
        == readers.load(tmp_path / "f.json")
        == Corpus(
            [Document(mill, "", burned), Document(nobody, "", "Nobody.")],
            [
                Question("1", "When?", ("1802", "in 1802"), (mill,)),
                Question("2", "What?", ("a mill",), (mill,)),
                Question("3", "Who?", ("none",), (nobody,)),
            ],
            "longbench",
        )
    )


@pytest.mark.parametrize("name", ["hotpotqa", "2wiki"])
@pytest.mark.parametrize("array", [False, True])
def test_hotpotqa_and_2wiki_are_read(tmp_path, name, array):
    first = {**HOTPOT, **({"evidences": [["Mill", "builder", "Ada"]]} if name == "2wiki" else {})}
    context = [first["context"][1], ["Ada", ["Another Ada."]], ["Eve", ["Another Ada."]]]
    rows = [
        first,
        {**first, "_id": "h2", "context": context, "supporting_facts": [["Ada", 1], ["Ada", 1]]},
    ]
    write(tmp_path, {"f": json.dumps(rows) if array else "\n".join(map(json.dumps, rows))})
    corpus = readers.load(tmp_path / "f")
    assert corpus.format == name
    assert [(d.title, d.text) for d in corpus.documents] == [
        ("Mill", "The mill stands. Ada built it."),
        ("Ada", "Ada was born here. She left."),
        ("Ada", "Another Ada."),
        ("Eve", "Another Ada."),
    ]
    mill, ada, other, eve = (d.id for d in corpus.documents)
    assert len({mill, ada, other, eve}) == 4
    assert corpus.questions == [
        Question(
            "h1", "Who built it?", ("Ada",), (mill, ada), ("Ada built it.", "Ada was born here.")
        ),
        Question("h2", "Who built it?", ("Ada",), (ada, other, eve), ("She left.",)),
    ]


@pytest.mark.parametrize("name", ["hotpotqa", "2wiki"])
def test_hotpotqa_and_2wiki_are_read_in_the_columns_of_the_hub(tmp_path, name):
    """As the hub's copies are, written to JSON."""
    turned = lambda pairs, columns: dict(
        zip(columns, map(list, zip(*pairs, strict=True)), strict=True)
    )
    row = {
        **HOTPOT,
        "id": "h2",
        "context": turned(HOTPOT["context"], ("title", "sentences")),
        "level": "hard",
        "supporting_facts": turned(HOTPOT["supporting_facts"], ("title", "sent_id")),
    }
    del row["_id"]
    other = {"evidences": [["Mill", "builder", "Ada"]]} if name == "2wiki" else {}
    write(
        tmp_path, {"official": json.dumps({**HOTPOT, **other}), "hub": json.dumps({**row, **other})}
    )
    official, hub = (readers.load(tmp_path / form) for form in ("official", "hub"))
    assert hub.format == name
    assert hub.documents == official.documents
    assert hub.questions == [dataclasses.replace(official.questions[0], id="h2")]


@pytest.mark.parametrize("array", [False, True])
def test_hotpotqa_facts_without_a_sentence_are_skipped_with_a_remark(tmp_path, array, capsys):
    """The published files have both: a fact beyond its paragraph's end, and one without a
    paragraph."""
    rows = [
        HOTPOT,
        {**HOTPOT, "_id": "h2", "supporting_facts": [["Ada", 902], ["Mill", 1], ["Away", 0]]},
    ]
    write(tmp_path, {"f": json.dumps(rows) if array else "\n".join(map(json.dumps, rows))})
    corpus, problems = readers.read(tmp_path / "f")
    assert not problems and [q.evidence for q in corpus.questions] == [
        ("Ada built it.", "Ada was born here."),
        ("Ada built it.",),
    ]
    place = " in row 2" if array else ""
    remarks = [
        f"{tmp_path / 'f'}:2: supporting_facts: item {i}: sentence {index} of {title!r} "
        f"is not found in the context{place}; it is passed over as evidence"
        for i, index, title in ((1, 902, "Ada"), (3, 0, "Away"))
    ]
    assert list(map(str, corpus.remarks)) == remarks
    assert _main(["check", str(tmp_path / "f")]) == 0
    out = capsys.readouterr().out
    assert all(str(remark) in out for remark in corpus.remarks) and "\npassed over: 2\n" in out
    assert out.endswith("no problem found\n")


def test_musique_is_read(tmp_path):
    second = {**MUSIQUE, "id": "3hop__2", "answer_aliases": [], "answerable": True}
    write(tmp_path, {"f": json.dumps([MUSIQUE, second])})
    corpus = readers.load(tmp_path / "f")
    assert corpus.format == "musique"
    assert [(d.title, d.text) for d in corpus.documents] == [
        ("Mill", "Ada built it."),
        ("Sea", "It is wide."),
    ]
    documents = tuple(d.id for d in corpus.documents)
    assert corpus.questions == [
        Question("2hop__1", "Who?", ("Ada", "Ada L."), documents, ("Ada built it.",), "2hop"),
        Question("3hop__2", "Who?", ("Ada",), documents, ("Ada built it.",), "3hop"),
    ]


def test_fairytaleqa_is_read_from_its_root_or_one_split(tmp_path):
    more = ASKED + "7,2,What?,x,x \n7,1,Where?,,y\n\n,,,,\n8,3,Who?,z,\n"
    write(
        tmp_path,
        {
            f"{kind}/{split}/{name}": text
            for kind, split, name, text in (
                ("section-stories", "train", "tale-story.csv", STORY),
                ("questions", "train", "tale-questions.csv", SHEETS[A]),
                ("section-stories", "val", "fox-story.csv", "section,text\n1,A\n2,B\n3,C\n3,D\n"),
                ("questions", "val", "fox-questions.csv", more),
            )
        },
    )
    fox = Document("fox", "", "A\n\nB\n\nC\n\nD")
    asked = [
        Question("fox:7", "What?", ("x",), ("fox",), ("B",)),
        Question("fox:7:2", "Where?", ("y",), ("fox",), ("A",)),
        Question("fox:8", "Who?", ("z",), ("fox",), ("C", "D")),
    ]
    tale = Document("tale", "", "One day,\nlong ago.\n\nThe end.")
    first = Question(
        "tale:1", "What?", ("this", "that"), ("tale",), ("One day,\nlong ago.", "The end.")
    )
    assert readers.load(str(tmp_path)) == Corpus([tale, fox], [first, *asked], "fairytaleqa")
    for kind in ("section-stories", "questions"):
        assert readers.load(tmp_path / kind / "val") == Corpus([fox], asked, "fairytaleqa")


def test_the_type_of_a_question_is_read(tmp_path):
    sheet = "question_id,cor_section,attribute1,question,answer1\n1,1,action,What?,x\n2,1,,Who?,y\n"
    plain = '{"id": "q", "question": "Who?", "answers": ["x"], "type": "who"}\n'
    files = {
        "tale/section-stories/val/tale-story.csv": "section,text\n1,A\n",
        "tale/questions/val/tale-questions.csv": sheet,
        "plain/documents.jsonl": '{"id": "d", "text": "x"}\n',
        "plain/questions.jsonl": plain + plain.replace('"q"', '"r"').replace('"who"', "7"),
        "beir/corpus.jsonl": '{"_id": "d", "text": "x"}\n',
        "beir/queries.jsonl": '{"_id": "q", "text": "Who?", "metadata": {"group": "who"}}\n',
        "beir/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\td\t2\n",
    }
    write(tmp_path, files)
    groups = lambda name: [q.group for q in readers.load(tmp_path / name).questions]
    assert groups("tale") == ["action", ""] and groups("plain") == ["who", ""]
    assert groups("beir") == ["who"]
    assert beir.read_grades(tmp_path / "beir") == {"q": {"d": 2}}


def test_a_fairytaleqa_section_of_200_000_characters_is_read(tmp_path):
    long = "word " * 40_000
    write(
        tmp_path,
        {
            "section-stories/train/tale-story.csv": f"section,text\n1,{long}\n2,x\n",
            "questions/train/tale-questions.csv": SHEETS[A],
        },
    )
    assert readers.load(tmp_path).documents[0].text.startswith(long.strip())


@settings(max_examples=60, deadline=None)
@given(corpus=corpora(), ascii_only=st.booleans(), gap=st.sampled_from(["\n", "\r\n", "\n \n"]))
def test_any_corpus_survives_a_round_trip_in_plain_format(
    tmp_path_factory, corpus, ascii_only, gap
):
    dump = lambda row: json.dumps(row, ensure_ascii=ascii_only)
    documents = [
        {"id": d.id, "text": d.text, **({"title": d.title} if d.title else {})}
        for d in corpus.documents
    ]
    questions = [
        {
            "id": q.id,
            "question": q.question,
            "answers": q.answers,
            "documents": q.documents,
            **({"evidence": q.evidence} if q.evidence else {}),
        }
        for q in corpus.questions
    ]
    folder = tmp_path_factory.mktemp("plain")
    write(folder, plain(gap.join(map(dump, documents)), gap.join(map(dump, questions))))
    assert readers.read(folder) == (corpus, [])
