"""What LangChain, LlamaIndex, AutoRAG and chats leave behind, as their libraries write it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ark_jax.data import readers
from ark_jax.data.formats.base import hashed_id
from ark_jax.data.records import BadInput

MILL, KILN = "The mill burned in 1802.", "The kiln stood by the lake."
LANGCHAIN = [  # langchain-core 1.8: `Document.model_dump_json`
    {"id": "d1", "metadata": {"title": "Mill"}, "page_content": MILL, "type": "Document"},
    {"id": None, "metadata": {"source": "b.txt"}, "page_content": KILN, "type": "Document"},
]
SERIALISED = [  # `langchain_core.load.dumps`
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "Document"], "kwargs": row}
    for row in LANGCHAIN
]
VECTORS = {  # `InMemoryVectorStore.dump`
    "d1": {"id": "d1", "vector": [-0.3, 1.0], "text": MILL, "metadata": {"title": "Mill"}},
    "d2": {"id": "d2", "vector": [-2.2, 0.4], "text": KILN, "metadata": {}},
}


def node(id: str, text: str, source: str = "", start: int | None = None) -> dict:
    """A document or, with a source, a node as LlamaIndex 0.14 stores them."""
    data = {"id_": id, "metadata": {}, "relationships": {}, "text": text}
    if source:
        data["relationships"] = {"1": {"node_id": source, "node_type": "4"}}
        return {"__data__": {**data, "start_char_idx": start}, "__type__": "1"}
    return {"__data__": {**data, "text_resource": {"text": text}}, "__type__": "4"}


def save(path, value):
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
    return path


def read(path) -> list[tuple[str, str, str]]:
    return [(d.id, d.title, d.text) for d in readers.load(path).documents]


@pytest.mark.parametrize("rows", [LANGCHAIN, SERIALISED])
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_documents_of_langchain_are_read(tmp_path, rows, suffix):
    path = tmp_path / f"store{suffix}"
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if suffix == ".jsonl" else json.dumps(rows))
    assert read(path) == [("d1", "Mill", MILL), (hashed_id(KILN), "", KILN)]


def test_an_empty_document_of_langchain_is_refused(tmp_path):
    path = tmp_path / "store.jsonl"
    path.write_text(json.dumps({"page_content": " ", "metadata": {}}))
    with pytest.raises(BadInput, match=r":1: page_content: is empty"):
        readers.load(path)


def test_a_vector_store_of_langchain_is_read(tmp_path):
    assert read(save(tmp_path / "s.json", VECTORS)) == [("d1", "Mill", MILL), ("d2", "", KILN)]


# `LocalFileStore` of langchain-classic 1.0, as `create_kv_docstore` fills it
STORED = (
    '{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "document", "Document"], '
    '"kwargs": {"metadata": {"title": "Mill"}, "page_content": "%s", "type": "Document"}}'
)


def test_a_folder_that_langchain_stores_documents_in_is_read(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "d1").write_text(STORED % MILL)
    (tmp_path / "b" / "d.2").write_text(STORED % KILN)
    (tmp_path / "vector").write_text("[0.5, 1.0]")
    corpus = readers.load(tmp_path)
    assert read(tmp_path) == [("d1", "Mill", MILL), ("b/d.2", "Mill", KILN)]
    assert "1 files (vector, ...) are no documents of LangChain" in str(corpus.remarks[0])
    assert {path.name for path in readers.files(tmp_path)} == {"d1", "d.2"}


def test_a_damaged_document_of_such_a_folder_is_named(tmp_path):
    for name, text in {"d1": STORED % MILL, "d2": (STORED % KILN)[:-9], "d3": STORED % " "}.items():
        (tmp_path / name).write_text(text)
    _, problems = readers.read(tmp_path)
    assert [(p.file.rpartition("/")[2], p.field, p.message[:12]) for p in problems] == [
        ("d2", "", "invalid JSON"),
        ("d3", "page_content", "is empty; fi"),
    ]


def test_splits_of_langchain_are_chunks_of_their_source(tmp_path):
    text = f"{MILL}\n{KILN}"
    rows = [
        {"page_content": part, "metadata": {"source": "a.txt", "start_index": text.index(part)}}
        for part in (MILL, KILN)
    ]
    corpus = readers.load(save(tmp_path / "splits.json", rows))
    assert [(d.id, d.text) for d in corpus.documents] == [("a.txt", text)]
    assert [chunk.text for chunk in corpus.chunks] == [MILL, KILN]


TEXT = f"{MILL}\n{KILN}"
STARTS = [0, TEXT.index(KILN)]
DOCUMENT = node("A", TEXT)
NODES = [node("n1", MILL, "A", STARTS[0]), node("n2", KILN, "A", STARTS[1])]


@pytest.mark.parametrize(
    ("objects", "starts"), [([DOCUMENT], None), (NODES, STARTS), ([DOCUMENT, *NODES], STARTS)]
)
def test_a_docstore_of_llama_index_gives_documents_and_chunks(tmp_path, objects, starts):
    """In a storage context, other files lie beside it."""
    (tmp_path / "index_store.json").write_text("{}")
    stored = {x["__data__"]["id_"]: x for x in objects}
    save(tmp_path / "docstore.json", {"docstore/metadata": {}, "docstore/data": stored})
    corpus = readers.load(tmp_path)
    assert corpus.format == "llama_index"
    assert [(d.id, d.text) for d in corpus.documents] == [("A", TEXT)]
    assert (corpus.chunks and [chunk.start for chunk in corpus.chunks]) == starts


def test_nodes_of_llama_index_without_text_are_reported(tmp_path):
    stored = {"i": {"__data__": {"id_": "i"}, "__type__": "2"}, "A": DOCUMENT}
    corpus = readers.load(save(tmp_path / "docstore.json", {"docstore/data": stored}))
    assert "1 nodes hold no text" in str(corpus.remarks[0])


QUERIES = {  # `EmbeddingQAFinetuneDataset.save_json`
    "queries": {"q": "When?"},
    "corpus": {"n1": MILL, "n2": KILN},
    "relevant_docs": {"q": ["n1"]},
    "mode": "text",
}


def test_queries_of_llama_index_name_their_documents(tmp_path):
    path = save(tmp_path / "pairs.json", QUERIES)
    corpus = readers.load(path)
    assert [d.id for d in corpus.documents] == ["n1", "n2"]
    assert corpus.questions[0].documents == ("n1",)
    asked, _ = readers.read_questions(path, corpus.texts)
    assert asked == corpus.questions


def test_a_query_of_llama_index_on_an_unknown_document_is_refused(tmp_path):
    queries = QUERIES | {"relevant_docs": {"q": ["n3"]}}
    with pytest.raises(BadInput, match="'n3' is not found in its corpus"):
        readers.load(save(tmp_path / "pairs.json", queries))


def test_examples_of_llama_index_have_answers_and_contexts(tmp_path):
    example = {"query": "When?", "reference_contexts": [MILL], "reference_answer": "1802"}
    corpus = readers.load(save(tmp_path / "rag.json", {"examples": [example]}))
    assert corpus.questions[0].answers == ("1802",) and corpus.questions[0].evidence == (MILL,)


def test_a_folder_of_autorag_is_read(tmp_path):
    documents = [{"doc_id": id, "contents": text} for id, text in (("d1", MILL), ("d2", KILN))]
    asked = {"qid": "q", "query": "When?", "retrieval_gt": [["d1"]], "generation_gt": ["1802"]}
    pq.write_table(pa.Table.from_pylist(documents), tmp_path / "corpus.parquet")
    pq.write_table(pa.Table.from_pylist([asked]), tmp_path / "qa.parquet")
    corpus = readers.load(tmp_path)
    assert corpus.format == "autorag" and [d.text for d in corpus.documents] == [MILL, KILN]
    (question,) = corpus.questions
    assert (question.id, question.documents, question.answers) == ("q", ("d1",), ("1802",))
    assert readers.read_questions(tmp_path / "qa.parquet", corpus.texts)[0] == [question]


CHATS = [
    (
        "messages",
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "When?"}]},
            {"role": "assistant", "content": "1802"},
        ],
    ),
    ("conversations", [{"from": "human", "value": "When?"}, {"from": "gpt", "value": "1802"}]),
]


@pytest.mark.parametrize(("name", "turns"), CHATS)
def test_a_chat_is_a_question_and_its_answer(tmp_path, name, turns):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({name: turns}))
    (question,), remarks = readers.read_questions(path, {"d": MILL})
    assert (question.question, question.answers) == ("When?", ("1802",)) and not remarks


@pytest.mark.parametrize(("name", "turns"), CHATS)
def test_further_turns_of_a_chat_are_reported(tmp_path, name, turns):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({name: [*turns, *turns[-2:]]}))
    (question,), (remark,) = readers.read_questions(path, {"d": MILL})
    assert question.answers == ("1802",) and "1 further turns" in str(remark)


ALPACA = [
    {"instruction": "Name the year.", "input": "When did the mill burn?", "output": "1802"},
    {"instruction": "When?", "input": "", "output": "1802"},
]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_instructions_are_questions_and_answers(tmp_path, suffix):
    path = tmp_path / f"alpaca{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ALPACA), path)
    elif suffix == ".csv":
        lines = [[*ALPACA[0]], *(row.values() for row in ALPACA)]
        path.write_text("\n".join(map(",".join, lines)))
    else:
        lines = "\n".join(map(json.dumps, ALPACA))
        path.write_text(lines if suffix == ".jsonl" else json.dumps(ALPACA))
    questions, remarks = readers.read_questions(path, {"d": MILL})
    assert [(q.question, q.answers) for q in questions] == [
        ("Name the year.\nWhen did the mill burn?", ("1802",)),
        ("When?", ("1802",)),
    ]
    assert not remarks


def test_a_faulty_instruction_is_named_as_the_file_names_it(tmp_path):
    rows = [*ALPACA, {**ALPACA[1], "output": ""}, {**ALPACA[0], "instruction": 5}]
    path = save(tmp_path / "alpaca.json", rows)
    with pytest.raises(BadInput) as error:
        readers.read_questions(path, {"d": MILL})
    assert [(p.line, p.field, p.message) for p in error.value.problems] == [
        (3, "output", "is empty in row 3; fill it in or delete it"),
        (4, "instruction", "is a number in row 4; write a string"),
    ]


def test_instructions_with_their_prompt_fit_two_kinds_of_rows(tmp_path):
    path = save(tmp_path / "alpaca.json", [{**ALPACA[0], "text": "Below is ..."}])
    questions, (remark,) = readers.read_questions(path, {"d": MILL})
    assert len(questions) == 1 and "its rows fit documents too" in str(remark)


TEVATRON = {
    "query_id": "7",
    "query": "When?",
    "positive_passages": [{"docid": "1", "title": "Mill", "text": MILL}],
    "negative_passages": [{"docid": "2", "title": "", "text": KILN}],
}


def test_passages_of_tevatron_are_read_as_pairs(tmp_path):
    corpus = readers.load(save(tmp_path / "train.json", [TEVATRON]))
    (question,) = corpus.questions
    assert [corpus.texts[id] for id in question.documents] == [f"Mill\n{MILL}"]
    assert [corpus.texts[id] for id in question.negatives] == [KILN] and question.id == "7"


def test_a_passage_of_tevatron_without_text_is_refused(tmp_path):
    row = TEVATRON | {"positive_passages": [{"docid": "1"}]}
    with pytest.raises(BadInput, match=r":1: positive_passages: item 1 is null"):
        readers.load(save(tmp_path / "train.json", [row]))


def test_files_that_langchain_writes_are_read(tmp_path):
    core = pytest.importorskip("langchain_core", reason="needs .[integrations]")
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore

    documents = [
        core.documents.Document(page_content=MILL, metadata={"title": "Mill"}, id="d1"),
        core.documents.Document(page_content=KILN, id="d2"),
    ]
    expected = [("d1", "Mill", MILL), ("d2", "", KILN)]
    lines = "".join(document.model_dump_json() + "\n" for document in documents)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json").write_text(core.load.dumps(documents))
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=3))
    store.add_documents(documents)
    store.dump(str(tmp_path / "c.json"))
    assert all(read(tmp_path / name) == expected for name in ("a.jsonl", "b.json", "c.json"))


def test_docstores_that_llama_index_writes_are_read(tmp_path):
    core = pytest.importorskip("llama_index.core", reason="needs .[integrations]")
    text = " ".join(f"The mill of {year} burned. It was built again." for year in range(1700, 1740))
    documents = [core.Document(text=text, id_="A")]
    splitter = core.node_parser.SentenceSplitter(chunk_size=60, chunk_overlap=20)
    nodes = splitter.get_nodes_from_documents(documents)
    for objects in (documents, nodes, documents + nodes):
        store = core.storage.docstore.SimpleDocumentStore()
        store.add_documents(objects)
        store.persist(str(tmp_path / "docstore.json"))
        corpus = readers.load(tmp_path)
        assert [(d.id, d.text.strip()) for d in corpus.documents] == [("A", text)]
        if objects is not documents:
            assert [chunk.text for chunk in corpus.chunks] == [node.text for node in nodes]
