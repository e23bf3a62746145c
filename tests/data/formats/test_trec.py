"""TREC's documents, topics and judgments, as NIST and others write them."""

import collections
import gzip

import pytest
from support.input_files import write

from ark_jax.data import readers
from ark_jax.data.formats import trec
from ark_jax.data.records import BadInput

NEWS = """<DOC>
<DOCNO> FT-1 </DOCNO>
<HEADLINE>FT  14 MAY: The <b>mill</b> &amp; the lake</HEADLINE>
<TEXT>
The mill <i>burned</i> in 1802.
It was rebuilt.
</TEXT>
</DOC>
<DOC><DOCNO>FT-2</DOCNO>
<TEXT>
</TEXT>
</DOC>

<DOC>
<DOCNO>FT-3</DOCNO>
<DOCHDR>http://x</DOCHDR>
The kiln stood by the lake.
</DOC>
"""
TOPICS = """
<top>

<num> Number: 051
<title> Burned Mills

<desc> Description:
Identify mills that burned.

<narr> Narrative:
A relevant document names one.

</top>
<top>
<num> Number: 302
<title> Topic: Kilns
</top>
"""
XML = """<?xml version="1.0" encoding="utf-8"?>
<topics task="COVIDSearch2020">
  <topic number="51">
    <query>mill fire</query>
    <question>when did the mill
    burn?</question>
  </topic>
</topics>
"""
QRELS = "51 0 FT-1 2\n51 0 FT-2 1\n51 0 FT-3 0\n302 0 FT-3 -1\n"
FILES = {"news/ft_1": NEWS, "topics.txt": TOPICS, "qrels.txt": QRELS}


def test_documents_topics_and_judgments_are_read(tmp_path):
    write(tmp_path, FILES)
    corpus = readers.load(tmp_path)
    assert corpus.format == "trec"
    assert [(d.id, d.title, d.text) for d in corpus.documents] == [
        ("FT-1", "FT 14 MAY: The mill & the lake", "The mill burned in 1802.\nIt was rebuilt."),
        ("FT-2", "", ""),
        ("FT-3", "", "The kiln stood by the lake."),
    ]
    (question,) = corpus.questions
    assert (question.question, question.documents) == ("Burned Mills", ("FT-1", "FT-2"))
    assert readers.read_grades(tmp_path)["51"] == {"FT-1": 2, "FT-2": 1}


def test_what_is_left_out_of_a_collection_is_reported(tmp_path):
    write(tmp_path, FILES | {"notes.md": "# Notes", "run.z": "x"})
    told = " ".join(remark.message for remark in readers.load(tmp_path).remarks)
    for words in (
        "1 documents hold no text",
        "1 files (run.z",
        "without 1 files such as notes.md",
        "1 topics have no relevant",
    ):
        assert words in told
    assert {path.name for path in readers.files(tmp_path)} == {"ft_1", "topics.txt", "qrels.txt"}


def test_each_file_is_looked_at_once_to_be_read(tmp_path, monkeypatch):
    """And the first one once more, to recognise the folder: it may hold a million files."""
    document = "<DOC><DOCNO>d%d</DOCNO>\nThe kiln.</DOC>\n"
    write(tmp_path, {"topics": TOPICS, "qrels": QRELS, "ft_1": NEWS})
    write(tmp_path, {f"more/{i:02d}": document % i for i in range(30)})
    seen = collections.Counter()
    look = trec.head_text
    monkeypatch.setattr(trec, "head_text", lambda path: seen.update([path.name]) or look(path))
    assert len(readers.load(tmp_path).documents) == 33
    assert len(seen) == 33 and seen.total() == 34


def test_a_topic_in_xml_asks_its_question(tmp_path):
    write(tmp_path, FILES | {"topics.txt": XML})
    (question,) = readers.load(tmp_path).questions
    assert (question.id, question.question) == ("51", "when did the mill burn?")


def test_topics_can_be_questions_on_other_documents(tmp_path):
    write(tmp_path, {"topics.xml": XML, "qrels.test": QRELS})
    (question,), _ = readers.read_questions(tmp_path / "topics.xml", {"FT-1": "x", "FT-2": "y"})
    assert question.documents == ("FT-1", "FT-2")


def test_topics_without_judgments_are_refused(tmp_path):
    write(tmp_path, {"topics.xml": XML})
    with pytest.raises(BadInput, match=r"put their judgments \(qrels\) beside them"):
        readers.read_questions(tmp_path / "topics.xml", {"FT-1": "x", "FT-2": "y"})


def test_topics_without_documents_are_refused_as_a_corpus(tmp_path):
    write(tmp_path, {"topics.xml": XML, "qrels.test": QRELS})
    with pytest.raises(BadInput, match="topics and no documents"):
        readers.load(tmp_path / "topics.xml")


def test_relevant_documents_that_are_absent_are_kept_without_text(tmp_path):
    write(tmp_path, FILES | {"qrels.txt": QRELS + "51 0 FT-9 1\n"})
    corpus = readers.load(tmp_path)
    assert corpus.questions[0].documents == ("FT-1", "FT-2", "FT-9") and corpus.texts["FT-9"] == ""
    assert "such as 'FT-9', are not in the documents" in corpus.remarks[1].message


def test_judgments_of_mostly_unknown_documents_are_refused(tmp_path):
    write(tmp_path, FILES | {"qrels.txt": "51 0 a 1\n51 0 b 1\n51 0 FT-1 1\n"})
    with pytest.raises(BadInput, match="'a' is not found in the documents"):
        readers.load(tmp_path)


def test_faulty_judgments_are_reported_by_line(tmp_path):
    """Those beyond the head of the file too, by which it is known as one."""
    many = "51 0 FT-1 2\n" * 60
    write(tmp_path, FILES | {"qrels.txt": many + "51 0 FT-2 high\n51 FT-3\n51 0 FT-3 1\n"})
    corpus, problems = readers.read(tmp_path)
    assert [(p.line, p.field, p.message.partition(";")[0]) for p in problems] == [
        (61, "score", "is 'high'"),
        (62, "", "2 field(s)"),
    ]
    assert corpus.questions[0].documents == ("FT-1", "FT-3")


def test_judgments_of_topics_that_are_not_there_are_reported(tmp_path):
    write(tmp_path, FILES | {"qrels.txt": QRELS + "7 0 FT-3 1\n"})
    told = [remark.message for remark in readers.load(tmp_path).remarks]
    assert "1 judged topics, such as '7', are not found; their judgments are passed over" in told
    write(tmp_path, {"qrels.txt": "7 0 FT-3 1\n"})
    with pytest.raises(BadInput, match="topics and judgments must use the same ids"):
        readers.load(tmp_path)


def test_packed_files_of_a_collection_are_read(tmp_path):
    packed = {f"{name}.gz": gzip.compress(text.encode()) for name, text in FILES.items()}
    corpora = (write(tmp_path / "a", FILES), write(tmp_path / "b", packed))
    plain, unpacked = map(readers.load, corpora)
    assert (plain.documents, plain.questions) == (unpacked.documents, unpacked.questions)
    packed["news/ft_1.gz"] = packed["news/ft_1.gz"][:-12]
    _, problems = readers.read(write(tmp_path / "cut", packed))
    assert "is packed by gzip and damaged; copy it again" in problems[0].message


def test_faults_of_a_collection_are_reported(tmp_path):
    cut = NEWS.removesuffix("</DOC>\n")
    write(tmp_path, {"a.sgml": cut.replace("FT-2", "FT-1")})
    _, problems = readers.read(tmp_path)
    assert [(p.line, p.message.partition(";")[0]) for p in problems] == [
        (9, "repeats 'FT-1' of line 1"),
        (14, "the last document is cut off"),
    ]
