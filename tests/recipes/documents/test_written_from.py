"""The documents and passages that questions are written from, and those kept for the test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ark_jax.data.records import Chunk, Question
from ark_jax.data.spool import save_chunks
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_rows, save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.core.split import Split
from ark_jax.recipes.documents import written_questions
from ark_jax.runtime.log import Metrics

DOCUMENTS = [f"d{i}" for i in range(10)]
ASKED = [Question(f"q{i}", f"Who is {i}?", ("Ada",), (f"d{i}",)) for i in range(10)]


def parts(train=(), held_out=(), unused=(), by="document") -> Split:
    pick = lambda numbers: [ASKED[i] for i in numbers]
    return Split(pick(train), pick(held_out), pick(unused), by)


def make_config(source: str, **data):
    c = config.ark()
    c.questions.source = source
    for name, value in data.items():
        c.data[name] = value
    return c


def sides(tmp_path, split, c, documents=DOCUMENTS) -> set[str]:
    """The documents that are held out."""
    written_questions.save_sides(documents, split, c, tmp_path)
    rows = load_rows(tmp_path / "sides.parquet")
    assert [row["document"] for row in rows] == documents
    return {row["document"] for row in rows if row["part"] == "held_out"}


@pytest.mark.parametrize(
    "source, data, train, held_out, unused",
    [
        ("given", {}, [0, 1], [2], [3]),
        ("both", {}, [0, 1], [2], [3]),
        ("written", {}, [], [0, 1, 2], [3]),  # all become the test
        ("written", {"held_out_documents": ("d2",)}, [], [2], [3, 0, 1]),  # or the named ones
        ("written", {"held_out_questions": ("q2",)}, [], [2], [3, 0, 1]),
    ],
)
def test_given_questions_are_reserved_for_the_test(source, data, train, held_out, unused):
    split = written_questions.reserve_for_test(parts([0, 1], [2], [3]), make_config(source, **data))
    assert split == parts(train, held_out, unused)


def test_an_input_without_questions_is_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"config\.questions\.source=written"):
        written_questions.parts_that_need_questions(0, make_config("given"))
    assert written_questions.parts_that_need_questions(0, make_config("written")) == ()
    assert written_questions.parts_that_need_questions(10, make_config("both")) == ("held_out",)


def test_without_written_questions_no_sides_are_stored(tmp_path):
    written_questions.save_sides(DOCUMENTS, parts([0], [1]), make_config("given"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_questions_are_written_from_test_documents(tmp_path):
    # The split is by document: nothing is written from the documents of held-out questions.
    assert sides(tmp_path, parts([0], [1, 2]), make_config("both")) == {"d1", "d2"}
    # It is by question: their documents are training documents too.
    assert sides(tmp_path, parts([0], [1], by="question"), make_config("both")) == set()
    # The test asks documents that retrieval will be tuned for, unless some are named.
    assert sides(tmp_path, parts([], [1, 2]), make_config("written")) == set()
    named = make_config("written", held_out_documents=("d7", "d8"))
    assert sides(tmp_path, parts([], [7]), named) == {"d7", "d8"}
    assert sides(tmp_path, parts(), named) == {"d7", "d8"}


@given(st.integers(2, 10), st.floats(0, 1), st.integers(0, 50))
def test_documents_without_questions_are_split_in_two(count, share, seed):
    c = make_config("written", held_out=share)
    c.seed = seed
    held_out = written_questions.held_out_documents(DOCUMENTS[:count], parts(), c)
    assert 0 < len(held_out) < count


def test_a_new_document_does_not_move_other_documents():
    c = make_config("written", held_out=0.4)
    held_out = lambda rows: written_questions.held_out_documents(rows, parts(), c)
    more = [*DOCUMENTS, *(f"e{i}" for i in range(20))]
    assert held_out(DOCUMENTS) == held_out(more) & set(DOCUMENTS)


def test_one_document_alone_cannot_be_split():
    with pytest.raises(ValueError, match="one document and no question"):
        written_questions.held_out_documents(DOCUMENTS[:1], parts(), make_config("written"))


@pytest.fixture
def context(tmp_path):
    """Three documents of 1, 4 and 9 chunks; the second is held out."""
    (tmp_path / "data").mkdir()
    chunks = [
        Chunk(f"d{i}#{j}", f"d{i}", 0, 1, 1, "x") for i in range(3) for j in range((i + 1) ** 2)
    ]
    save_chunks(chunks, tmp_path / "data")
    for part in ("train", "held_out"):
        save_rows([], tmp_path / "data" / f"questions_{part}.parquet", Question)
    rows = [{"document": f"d{i}", "part": "held_out" if i == 1 else "train"} for i in range(3)]
    save_rows(rows, tmp_path / "data" / "sides.parquet")
    return Context(make_config("written"), tmp_path, Metrics(tmp_path / "metrics.jsonl"))


def drawn(context, part: str) -> list[str]:
    return [chunk.id for chunk in written_questions.drawn_passages(context)[part]]


def test_passages_are_drawn_evenly(context):
    assert len(drawn(context, "train")) == 10 and len(drawn(context, "held_out")) == 4
    context.config.questions.passages = 5
    ids = [*drawn(context, "train"), *drawn(context, "held_out")]
    count = lambda document: sum(id.startswith(f"{document}#") for id in ids)
    assert [count("d0"), count("d1"), count("d2")] == [1, 2, 2] and len(set(ids)) == 5
    fewer = set(drawn(context, "train"))
    context.config.seed = 1
    assert fewer == set(drawn(context, "train"))  # seeds share a model's replies, or a recording
    context.config.questions.passages = 8
    assert fewer < set(drawn(context, "train"))  # more passages keep those of fewer


def test_no_test_questions_are_written_if_a_test_is_given(context):
    save_rows(ASKED[1:2], context / "data" / "questions_held_out.parquet", Question)
    assert drawn(context, "held_out") == [] and len(drawn(context, "train")) == 10


def test_the_graph_covers_documents_of_given_and_written_questions(context):
    context.config.questions.passages = 1
    [one] = {id.partition("#")[0] for part in ("train", "held_out") for id in drawn(context, part)}
    assert written_questions.training_documents(context) == {one} - {"d1"}
    save_rows([ASKED[0]], context / "data" / "questions_train.parquet", Question)
    assert written_questions.training_documents(context) == ({one} - {"d1"}) | {"d0"}
    context.config.questions.source = "given"
    assert written_questions.training_documents(context) == {"d0"}
