"""A comparison of retrievers: its figures against trec_eval's, a run's and a search's."""

import functools
import json
import shutil

import numpy as np
import pytest
from support import tiny
from support.brute_force import bm25, fuse
from support.world import HELD_OUT, make_world, tiny_config

import ark_jax as ark
from ark_jax.comparison import answering
from ark_jax.comparison.comparison import compare, save, text_of
from ark_jax.comparison.rankings import parse_systems
from ark_jax.data.problems import Reading
from ark_jax.data.records import BadInput
from ark_jax.index.writer import Writer
from ark_jax.models.retriever import Retriever
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import load_json, load_rows
from ark_jax.recipes.documents.evaluate import RETRIEVAL, evaluate
from ark_jax.recipes.documents.ingest import ingest
from ark_jax.recipes.documents.retrieve import Systems, retrieve_baselines
from ark_jax.retrieval.chunks import ChunkRules
from ark_jax.retrieval.fusion import Fusion, save_fusion
from ark_jax.runtime.log import Metrics
from ark_jax.text.token_vectors import TokenVectors

SENTENCES = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
TEXTS = {f"d{i:02}": " ".join(SENTENCES[i + 1].split()[:10]) for i in range(40)}  # a passage each
NAMES = {"ndcg@10": "ndcg_cut_10", "recall@5": "recall_5", "mrr": "recip_rank", "map": "map"}


def grades() -> dict[str, dict[str, int]]:
    """Judgements of twelve queries: three documents each, of grades from 1 to 3."""
    ids = list(TEXTS)
    return {
        f"q{i:02}": {ids[(3 * i + 7 * j) % 40]: 1 + (i + j) % 3 for j in range(3)}
        for i in range(12)
    }


def query(i: int) -> str:
    """Words of a document that answers it and of one that does not."""
    return " ".join([*TEXTS[f"d{3 * i:02}"].split()[:2], *TEXTS[f"d{(3 * i + 5) % 40:02}"].split()])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the retrievers a and b, and a BEIR folder."""
    root = tiny.retrievers(tmp_path_factory.mktemp("compare"), "a", "b")
    beir = root / "beir"
    (beir / "qrels").mkdir(parents=True)
    write_rows(beir / "corpus.jsonl", [{"_id": id, "text": text} for id, text in TEXTS.items()])
    kinds = ("who", "what")
    rows = [
        {"_id": f"q{i:02}", "text": query(i), "metadata": {"type": kinds[i % 2]}} for i in range(12)
    ]
    write_rows(beir / "queries.jsonl", rows)
    lines = [f"{q}\t{d}\t{x}\n" for q, judged in grades().items() for d, x in judged.items()]
    head = "query-id\tcorpus-id\tscore\n"
    (beir / "qrels" / "test.tsv").write_text(head + "".join(lines) + "q00\td39\t0\n")
    return root


def write_rows(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def on_a_mesh(mesh, monkeypatch, tmp_path):
    """Every test enters the same mesh, and has a cache of its own."""
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))


def brute_force(model, depth: int = 20) -> dict[str, list[list[str]]]:
    """The rankings of a model, of BM25 and of both, without an index."""
    ids, texts, queries = list(TEXTS), list(TEXTS.values()), [query(i) for i in range(12)]
    retriever = Retriever.from_pretrained(model)
    vectors = retriever.encode(texts, kind="document")
    cosines = retriever.encode(queries, kind="query") @ vectors.T
    dense = np.argsort(-cosines, axis=1)[:, :depth].tolist()
    words = bm25(queries, texts, [range(40)] * 12, depth)
    both = [fuse(list(pair), depth) for pair in zip(words, dense, strict=True)]
    named = {"a": dense, "bm25": words, "a+bm25": both}
    return {name: [[ids[i] for i in best] for best in rows] for name, rows in named.items()}


def words(place, *names: str) -> list[str]:
    """Words of systems, in which retrievers have their whole path."""
    whole = {"a": str(place / "a"), "b": str(place / "b"), "bm25": "bm25"}
    return ["+".join(whole[part] for part in name.split("+")) for name in names]


def means(table: list[dict]) -> dict[str, dict[str, float]]:
    """system -> metric -> mean."""
    return {row["system"]: {m: x["mean"] for m, x in row["values"].items()} for row in table}


def test_metrics_of_every_question_match_trec_eval(place, tmp_path):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="extra [reference] is not installed")
    systems = words(place, "a", "bm25", "a+bm25")
    comparison = compare(systems, place / "beir", folder=tmp_path / "i", metrics=list(NAMES))
    measures = {"ndcg_cut.10", "recall.5", "recip_rank", "map"}
    evaluator = pytrec_eval.RelevanceEvaluator(grades(), measures)
    queries = list(grades())
    for name, rankings in brute_force(place / "a").items():
        pairs = zip(queries, rankings, strict=True)
        run = {q: {id: 1 / rank for rank, id in enumerate(best, 1)} for q, best in pairs}
        wanted = evaluator.evaluate(run)
        rows = {row["question"]: row for row in comparison.rows if row["system"] == name}
        for ours, theirs in NAMES.items():
            values = [wanted[q][theirs] for q in queries]
            assert [rows[q][ours] for q in queries] == pytest.approx(values, abs=1e-6)
            assert means(comparison.table)[name][ours] == pytest.approx(np.mean(values), abs=1e-6)
            assert 0 < np.mean(values) < 1


def test_rankings_equal_those_of_a_search(place, tmp_path):
    systems = words(place, "b", "bm25", "b+bm25")
    comparison = compare(systems, place / "beir", folder=tmp_path / "i", scope="corpus")
    index = ark.Index.open(tmp_path / "i")
    for name, by in (("b", "dense"), ("bm25", "bm25"), ("b+bm25", "hybrid")):
        hits = index.search([query(i) for i in range(12)], k=20, by=by)
        ranked = [row["ranked"] for row in comparison.rows if row["system"] == name]
        assert ranked == [[hit.chunk for hit in best] for best in hits]


@pytest.mark.parametrize("scope", ["corpus", "asked"])
def test_models_with_token_vectors_can_be_compared(scope, place, tmp_path):
    tokens = tiny.multi_vector(tmp_path / "models", "c") / "c"
    names = [str(tokens), f"{tokens}+bm25", str(place / "a")]
    comparison = compare(names, place / "beir", folder=tmp_path / "i", scope=scope)
    index = ark.Index.open(tmp_path / "i")
    assert isinstance(index.vectors, TokenVectors)
    searched = {id for q in grades().values() for id in q} if scope == "asked" else set(TEXTS)
    pooled = index.with_model(place / "a")
    for name, opened, by in (("c", index, "dense"), ("a", pooled, "dense")):
        hits = opened.search([query(i) for i in range(12)], k=40, by=by)
        wanted = [[x.chunk for x in best if x.document in searched][:20] for best in hits]
        ranked = [row["ranked"] for row in comparison.rows if row["system"] == name]
        assert ranked == wanted
    assert {row["system"] for row in comparison.rows} == {"c", "c+bm25", "a"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A corpus of long documents with tiny models."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("scope", ["document", "held_out", "corpus"])
def test_comparing_on_the_held_out_questions_reproduces_a_run(
    scope, world, place, tmp_path, monkeypatch
):
    config = tiny_config(world)
    config.evaluate.read = -1
    config.evaluate.answers = ("answer_f1", "answer_likelihood")
    monkeypatch.setattr(answering, "ANSWER_TOKENS", config.evaluate.max_new_tokens)
    config.evaluate.scope, config.evaluate.retrievers = scope, (str(place / "a"),)
    config.evaluate.baselines, config.evaluate.hybrids = ("bm25",), ("bm25+base",)
    context = Context(config, tmp_path / "run", Metrics(tmp_path / "metrics.jsonl"))
    for name, run in (
        ("data", ingest),
        ("baselines", retrieve_baselines),
        ("evaluate", functools.partial(evaluate, systems_of=lambda c: Systems(c.evaluate))),
    ):
        (context / name).mkdir(parents=True)
        run(context, context / name)
    held_out = load_rows(context / "data" / "questions_held_out.parquet")
    assert {x["documents"][0] for x in held_out} == set(HELD_OUT) and held_out
    write_rows(tmp_path / "asked.jsonl", held_out)
    settings = config.data
    comparison = compare(
        [config.retriever.path, "bm25", f"bm25+{config.retriever.path}", str(place / "a")],
        tmp_path / "asked.jsonl",
        corpus=world / "corpus",
        folder=tmp_path / "i",
        scope={"document": "documents", "held_out": "asked"}.get(scope, scope),
        rules=ChunkRules(settings.chunking, settings.chunk_tokens, settings.chunk_overlap),
        metrics=(*RETRIEVAL, "answer_f1", "answer_likelihood"),
        answering=answering.Answering(
            Writer.local(config.generator.path, tmp_path / "replies.jsonl"),
            config.evaluate.passages,
        ),
    )
    of_run = means(load_json(context / "evaluate" / "metrics.json")["table"])
    pairs = {"retriever": "base", "bm25": "bm25", "bm25+retriever": "bm25+base", "a": "a"}
    for name, theirs in pairs.items():
        wanted = {metric: of_run[theirs][metric] for metric in comparison.metrics}
        assert means(comparison.table)[name] == pytest.approx(wanted, abs=1e-9)
    assert len(comparison.rows) == 4 * len(held_out)
    replies = lambda rows, names: {
        (names.get(row["system"]), row["question"]): row["answer"] for row in rows
    }
    ran = load_rows(context / "evaluate" / "questions.parquet")
    assert replies(comparison.rows, pairs) == replies(ran, {x: x for x in pairs.values()})
    assert any(row["answer"] for row in comparison.rows)


def test_questions_of_a_document_count_as_one_observation(place, tmp_path):
    """Six questions on each of two documents are two draws, however many gain."""
    write_rows(tmp_path / "documents.jsonl", [{"id": x, "text": TEXTS[x]} for x in ("d00", "d03")])
    rows = [
        {"id": f"q{i}", "question": query(i % 2), "documents": [f"d{3 * (i % 2):02}"]}
        for i in range(12)
    ]
    write_rows(tmp_path / "questions.jsonl", rows)
    comparison = compare(words(place, "a", "bm25"), tmp_path, folder=tmp_path / "i")
    tested = comparison.table[1]["values"]["ndcg@10"]["against_base"]
    assert tested["p"] >= 0.5  # of four ways to sign two documents
    assert "with 2 documents no difference reaches p < 0.05" in comparison.remarks
    assert {row["document"] for row in comparison.rows} == {"d00", "d03"}


def test_each_type_of_question_has_its_own_table(place, tmp_path):
    comparison = compare(words(place, "a", "bm25"), place / "beir", folder=tmp_path / "i")
    assert set(comparison.groups) == {"who", "what"}
    who = [row["mrr"] for row in comparison.rows if row["system"] == "a"][::2]
    assert means(comparison.groups["who"])["a"]["mrr"] == pytest.approx(np.mean(who))
    text, page = text_of(comparison), save(comparison, tmp_path).read_text()
    assert text.count("system") > text.count("all questions") == 1
    assert "Results of who" in page and "Results of what" in page


def test_all_systems_are_tested_against_the_reference(place, tmp_path):
    systems = words(place, "a", "b", "bm25", "a+bm25")
    for reference in ("bm25", ""):
        comparison = compare(systems, place / "beir", folder=tmp_path / "i", reference=reference)
        first = reference or "a"
        assert comparison.reference == first == comparison.table[0]["system"]
        values = {row["system"]: row["values"]["mrr"] for row in comparison.table}
        assert {x for x in values if "against_base" in values[x]} == set(values) - {first}
        # BM25 is a part of the hybrid, and tested as one unless it is the reference.
        assert ("against_part" in values["a+bm25"]) == (first != "bm25")
    assert "differs from a" in (text := text_of(comparison)) or "difference from a" in text
    assert "a+bm25 against bm25: " in text
    by_path = compare(systems, place / "beir", folder=tmp_path / "i", reference=systems[1])
    assert by_path.reference == "b"


def test_an_index_can_be_given_as_model_and_corpus(place, tmp_path, monkeypatch):
    index = tmp_path / "my_index"
    ark.Index.build(index, place / "a", place / "beir")
    systems = [str(index), f"{index}+bm25", str(place / "b")]
    whole = compare(systems, place / "beir")
    rows = [
        {
            "id": q,
            "question": query(i),
            "documents": list(judged),
            "evidence": [TEXTS[next(iter(judged))]],
        }
        for i, (q, judged) in enumerate(grades().items())
    ]
    write_rows(tmp_path / "asked.jsonl", rows)
    alone = compare(systems, tmp_path / "asked.jsonl")
    assert [row["ranked"] for row in alone.rows] == [row["ranked"] for row in whole.rows]
    assert [row["system"] for row in whole.table] == ["my_index", "my_index+bm25", "b"]
    assert not (tmp_path / "cache" / "evaluate").exists()
    with pytest.raises(ValueError, match=r"--corpus: the index .* is the corpus"):
        compare(systems, tmp_path / "asked.jsonl", corpus=place / "beir")
    write_rows(tmp_path / "other.jsonl", [{**rows[0], "documents": ["d00", "x"]}])
    with pytest.raises(ValueError, match="'x' is not found"):
        compare(systems, tmp_path / "other.jsonl")
    shutil.copytree(place / "beir", tmp_path / "changed")
    corpus = tmp_path / "changed" / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace(TEXTS["d07"], "Another text."))
    with pytest.raises(ValueError, match="'d07' has another text in the index"):
        compare(systems, tmp_path / "changed")


def test_the_fusion_of_the_model_folder_is_used(place, tmp_path):
    folder = tmp_path / "tuned"
    shutil.copytree(place / "a", folder)
    save_fusion(Fusion(bm25=1.0, dense=0.0, depth=30), folder)
    systems = [str(place / "b"), f"{folder}+bm25", "bm25"]
    comparison = compare(systems, place / "beir", folder=tmp_path / "i", scope="corpus")
    ranked = {
        name: [x["ranked"] for x in comparison.rows if x["system"] == name]
        for name in ("bm25", "tuned+bm25")
    }
    for both, by_words in zip(ranked["tuned+bm25"], ranked["bm25"], strict=True):
        assert both[: len(by_words)] == by_words  # nothing else counts
    assert ark.Index.build(tmp_path / "j", folder, place / "beir").manifest.fusion.dense == 0


def test_an_unknown_field_in_the_fusion_file_is_refused(place, tmp_path):
    folder = tmp_path / "tuned"
    shutil.copytree(place / "a", folder)
    (folder / "fusion.json").write_text('{"constant": 60, "weight": 2}')
    with pytest.raises(ValueError, match=r"fusion.json is damaged .*weight"):
        ark.Index.build(tmp_path / "k", folder, place / "beir")


def test_the_cache_keeps_the_index_of_a_corpus(place, tmp_path, monkeypatch):
    first = compare(words(place, "a", "bm25"), place / "beir")
    embedded = []
    encode = Retriever.encode

    def record(self, texts, *, kind, **options):
        embedded.extend(texts if kind == "document" else ())
        return encode(self, texts, kind=kind, **options)

    monkeypatch.setattr(Retriever, "encode", record)
    assert compare(words(place, "a", "bm25"), place / "beir") == first
    assert embedded == [] and len(list((tmp_path / "cache" / "evaluate").iterdir())) == 1
    compare(words(place, "a", "b"), place / "beir")
    assert len(embedded) == len(TEXTS)  # by b alone


@pytest.mark.parametrize(
    "names, message",
    [
        (["bm25"], "name a retriever too"),
        (["bm25+bm25", "x"], r"'bm25\+bm25' names no system"),
        (["x", ""], "'' names no system"),
        (["x", "bm25", "x"], "'x' comes twice"),
    ],
)
def test_invalid_system_names_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        parse_systems(names)


def test_systems_are_named_by_the_end_of_their_path():
    names = lambda *words: [system.name for system in parse_systems(words)]
    assert names("r/export", "r/export+bm25", "bm25+r/export", "org/m@v1") == [
        "export",
        "export+bm25",
        "bm25+export",
        "m@v1",
    ]
    assert names("r/export", "s/export", "s/export+bm25") == [
        "r/export",
        "s/export",
        "s/export+bm25",
    ]


def test_questions_without_a_gold_passage_are_left_out(place, tmp_path):
    write_rows(tmp_path / "documents.jsonl", [{"id": x, "text": TEXTS[x]} for x in ("d00", "d03")])
    known = {"id": "q0", "question": query(0), "documents": ["d00"]}
    nowhere = {"id": "q1", "question": "why?", "answers": ["xylophone"]}
    write_rows(tmp_path / "questions.jsonl", [known, nowhere])
    comparison = compare(words(place, "a", "bm25"), tmp_path, folder=tmp_path / "i")
    assert [row["mrr"] for row in comparison.rows if row["question"] == "q1"] == [None, None]
    assert "1 questions are left out: no passage answers them" in comparison.remarks
    assert any(remark.startswith("1 questions: a test would") for remark in comparison.remarks)
    write_rows(tmp_path / "questions.jsonl", [nowhere])
    with pytest.raises(ValueError, match="nothing can be measured"):
        compare(words(place, "a", "bm25"), tmp_path, folder=tmp_path / "i")
    (tmp_path / "questions.jsonl").unlink()
    with pytest.raises(ValueError, match="holds no question"):
        compare(words(place, "a", "bm25"), tmp_path, folder=tmp_path / "i")


def beir_folder(root, documents: dict[str, str], queries: dict[str, str], judged: str):
    """A BEIR folder; `judged` holds the lines of its judgments below their header."""
    (root / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", queries)):
        write_rows(root / f"{name}.jsonl", [{"_id": id, "text": x} for id, x in texts.items()])
    (root / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return root


def test_empty_and_absent_documents_count_as_relevant(place, tmp_path):
    documents = {"d1": "the bell rang", "d2": "", "d3": "a fox crossed the ice"}
    judged = "q1\td1\t1\nq1\tdX\t1\nq2\td3\t2\nq3\td2\t1\n"
    queries = {"q1": "bell", "q2": "fox", "q3": "silence"}
    data = beir_folder(tmp_path / "data", documents, queries, judged)
    metrics = ["recall@10", "ndcg@10"]
    systems = words(place, "a", "bm25")
    comparison = compare(systems, data, folder=tmp_path / "i", scope="corpus", metrics=metrics)
    rows = {x["question"]: x for x in comparison.rows if x["system"] == "bm25"}
    assert [rows[q]["recall@10"] for q in queries] == [0.5, 1.0, 0.0]
    ideal = 1 + 1 / np.log2(3)
    assert [rows[q]["ndcg@10"] for q in queries] == pytest.approx([1 / ideal, 1.0, 0.0])


@pytest.mark.parametrize("grade", [1, 2])
def test_absent_documents_count_with_any_grade(grade, place, tmp_path, capsys):
    judged = f"q1\td1\t{grade}\nq1\tdX\t{grade}\n"
    documents = {"d1": "the bell rang", "d2": "a fox ran"}
    data = beir_folder(tmp_path / "data", documents, {"q1": "bell"}, judged)
    metrics = ["recall@10", "ndcg@10", "map"]
    systems = words(place, "a", "bm25")
    comparison = compare(systems, data, folder=tmp_path / "i", scope="corpus", metrics=metrics)
    values = means(comparison.table)["bm25"]
    assert values["recall@10"] == values["map"] == 0.5
    assert values["ndcg@10"] == pytest.approx(1 / (1 + 1 / np.log2(3)))
    assert "1 relevant documents, such as 'dX', are not in corpus.jsonl" in capsys.readouterr().out


@pytest.mark.parametrize(("rule", "bests"), [("auto", "d1 d3 9"), ("leave_out", "d1 d3 d4")])
def test_results_leave_out_the_document_that_is_the_question(rule, bests, place, tmp_path):
    """Two of three questions are documents too; the third one shares an id by chance."""
    queries = {"q1": "what froze in may", "q2": "what crossed the ice", "9": "a bell rang"}
    documents = {
        "d1": "may froze the river",
        "d3": "a fox crossed the ice",
        "d4": "on a hill they rang one bell",
        "9": "a bell rang twice",
        **{id: queries[id] for id in ("q1", "q2")},
    }
    data = beir_folder(tmp_path / "data", documents, queries, "q1\td1\t1\nq2\td3\t1\n9\td3\t1\n")
    systems, folder = words(place, "a", "bm25"), tmp_path / "i"

    def first(same_id: str) -> list[str]:
        comparison = compare(systems, data, folder=folder, scope="corpus", same_id=same_id)
        told = [x for x in comparison.remarks if "leaves its own out" in x]
        assert bool(told) == (same_id != "keep")
        chunks = ark.Index.open(folder).chunks
        documents = {chunk.id: chunk.document for chunk in chunks}
        rows = [x for x in comparison.rows if x["system"] == "bm25"]
        return [documents[row["ranked"][0]] for row in rows]

    assert first(rule) == bests.split()
    assert first("keep") == ["q1", "q2", "9"]


def test_the_given_columns_and_tolerance_are_used(place, tmp_path):
    """A bad row is left out, and columns have other names."""
    (tmp_path / "c.csv").write_text("Key,Passage\nd1,the bell rang\nd2,a fox ran\nd2,a boat\n")
    (tmp_path / "q.csv").write_text("Prompt,documents\nbell?,d1\n")
    systems, folder = words(place, "a", "bm25"), tmp_path / "i"
    data, corpus = tmp_path / "q.csv", tmp_path / "c.csv"
    columns = "id=Key,text=Passage,question=Prompt"
    with pytest.raises(BadInput, match=r"or read the rest with --tolerate=0\.3334"):
        compare(systems, data, corpus=corpus, folder=folder, reading=Reading("", columns))
    reading = Reading("", columns, 0.3334)
    comparison = compare(systems, data, corpus=corpus, folder=folder, reading=reading)
    assert comparison.about["Documents"] == 2 and len(comparison.rows) == 2
