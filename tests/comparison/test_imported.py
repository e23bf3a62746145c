"""Rankings and answers of other systems as rows: trec_eval's and LongBench's figures, our own."""

import json
import random

import numpy as np
import pytest
from support import tiny
from support.paths import DATA

from ark_jax.comparison.comparison import compare, save, text_of
from ark_jax.comparison.rankings import parse_systems

NAMES = {"ndcg@10": "ndcg_cut_10", "recall@5": "recall_5", "mrr": "recip_rank", "map": "map"}
SENTENCES = tiny.DOCUMENTS.read_text(encoding="utf-8").replace("\\n", " ").split(". ")
TEXTS = {f"d{i:02}": " ".join(SENTENCES[i + 1].split()[:10]) for i in range(30)} | {"blank": ""}
QUERIES = {f"q{i}": " ".join(TEXTS[f"d{3 * i:02}"].split()[:4]) for i in range(8)}


@pytest.fixture(autouse=True)
def on_a_mesh(mesh, monkeypatch, tmp_path):
    """Every test enters the same mesh, and has a cache of its own."""
    monkeypatch.setenv("ARK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(tiny.retrievers(tmp_path_factory.mktemp("models"), "a") / "a")


def write_rows(path, rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def beir_folder(root, texts: dict[str, str], queries: dict[str, str], grades: dict) -> str:
    """A BEIR folder; `grades` are query -> document -> grade."""
    (root / "qrels").mkdir(parents=True)
    write_rows(root / "corpus.jsonl", [{"_id": id, "text": text} for id, text in texts.items()])
    write_rows(root / "queries.jsonl", [{"_id": id, "text": text} for id, text in queries.items()])
    lines = [f"{q}\t{d}\t{x}\n" for q, judged in grades.items() for d, x in judged.items()]
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return str(root)


def write_run(path, run: dict[str, dict[str, float]]) -> str:
    """A TREC run, whose ranks say nothing; returns the word that names it."""
    lines = [f"{q} Q0 {d} 1 {x} other\n" for q, scores in run.items() for d, x in scores.items()]
    path.write_text("".join(lines))
    return f"run:{path}"


def rows_of(comparison, system: str) -> dict[str, dict]:
    """question -> row."""
    return {row["question"]: row for row in comparison.rows if row["system"] == system}


def judged(highest: int) -> dict[str, dict[str, int]]:
    """Grades from 1 on; of a document without text and of one that the corpus lacks too."""
    ids = list(TEXTS)
    named = {
        q: {ids[(3 * i + 7 * j) % 30]: 1 + (i + j) % highest for j in range(3)}
        for i, q in enumerate(QUERIES)
    }
    named["q0"] |= {"blank": 1, "absent": 1}
    return named


@pytest.mark.parametrize("highest", [1, 3])
def test_rows_of_a_run_match_trec_eval(highest, model, tmp_path):
    """With equal scores, an unknown document, a short list, and a question without a list."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="extra [reference] is not installed")
    draw, grades = random.Random(highest), judged(highest)
    documents = [*TEXTS, "absent", "unknown"]
    run = {
        q: {d: draw.choice([0.5, 1.0, 1.0 + 1e-9, 2.0]) for d in draw.sample(documents, n)}
        for q, n in zip(
            [*list(QUERIES)[:-1], "unasked"], (20, 20, 18, 3, 20, 11, 20, 5), strict=True
        )
    }
    run["q0"] = {**dict(list(run["q0"].items())[:15]), "absent": 2.0, "blank": 1.0, "unknown": 2.0}
    data = beir_folder(tmp_path / "data", TEXTS, QUERIES, grades)
    word = write_run(tmp_path / "other.trec", run)
    comparison = compare([model, word, "bm25"], data, scope="corpus", metrics=list(NAMES))
    measures = {"ndcg_cut.10", "recall.5", "recip_rank", "map"}
    wanted = pytrec_eval.RelevanceEvaluator(grades, measures).evaluate(run)
    rows = rows_of(comparison, "other")
    for ours, theirs in NAMES.items():
        values = [wanted[q][theirs] if q in run else 0.0 for q in QUERIES]
        assert [rows[q][ours] for q in QUERIES] == pytest.approx(values, abs=1e-6)
        cell = next(x for x in comparison.table if x["system"] == "other")["values"][ours]
        assert cell["mean"] == pytest.approx(np.mean(values), abs=1e-6)
        assert cell["low"] < cell["mean"] < cell["high"] and 0 < cell["against_base"]["p"] <= 1
    (told,) = (remark for remark in comparison.remarks if remark.startswith("other: "))
    assert "1 of 8 questions have no ranking, which counts 0" in told
    assert "1 of its questions are not in the test set" in told
    assert "ranked documents are not in the corpus" in told
    assert "rankings have fewer than 20 documents" in told


def test_published_figures_of_trec_eval(model, tmp_path):
    """The whole way from NIST's files to the table; documents have their ids for texts."""
    folder = DATA / "trec_eval_tests"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published outputs")
    rows = [line.split() for line in (folder / "qrels.test").read_text().splitlines()]
    grades: dict = {}
    for query, _, document, grade in rows:
        if int(grade) > 0:
            grades.setdefault(query, {})[document] = int(grade)
    texts = {document: document for judged in grades.values() for document in judged}
    queries = {query: f"question {query}" for query in grades}
    data = beir_folder(tmp_path / "data", texts, queries, grades)
    names = {"map@1000": "map", "mrr@1000": "recip_rank"}
    for k in (5, 10, 20, 100, 500):
        names |= {f"precision@{k}": f"P_{k}", f"recall@{k}": f"recall_{k}"}
        names |= {f"ndcg@{k}": f"ndcg_cut_{k}", f"map@{k}": f"map_cut_{k}"}
    words = [model, f"run:{folder / 'results.test'}"]
    comparison = compare(words, data, scope="corpus", metrics=list(names))
    lines = [line.split() for line in (folder / "out.test.aq").read_text().splitlines()]
    published = {(query, name): value for name, query, value in lines}
    measured = {**rows_of(comparison, "results")}
    means = {m: x["mean"] for m, x in comparison.table[1]["values"].items()}
    for query, values in (*measured.items(), ("all", means)):
        for ours, theirs in names.items():
            assert f"{values[ours]:.4f}" == published[query, theirs], (query, theirs)


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> str:
    """A test set of questions with answers and documents."""
    root = tmp_path_factory.mktemp("told")
    texts = {id: text for id, text in TEXTS.items() if text}
    write_rows(root / "documents.jsonl", [{"id": id, "text": text} for id, text in texts.items()])
    rows = [
        {
            "id": q,
            "question": text,
            "documents": [f"d{3 * i:02}"],
            "answers": [TEXTS[f"d{3 * i:02}"].split()[1]],
        }
        for i, (q, text) in enumerate(QUERIES.items())
    ]
    write_rows(root / "questions.jsonl", rows)
    return str(root)


def references(data: str) -> dict[str, str]:
    with open(f"{data}/questions.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["id"]: row["answers"][0] for row in rows}


def test_our_own_rankings_and_answers_give_our_own_rows(model, told, tmp_path):
    replies = references(told) | {"q0": "nothing", "q1": f"the {references(told)['q1']} of old"}
    (tmp_path / "said.json").write_text(json.dumps(replies))
    words = [model, "bm25", f"answers:{tmp_path / 'said.json'}"]
    own = compare(words, told, scope="corpus")
    save(own, tmp_path)
    file = tmp_path / "questions.parquet"
    again = [f"run:{file}#a", f"run:{file}#bm25", f"answers:{file}#said"]
    both = compare([*words, *again], told, scope="corpus", reference="bm25")
    assert not any("documents are not in" in remark for remark in both.remarks)
    cells = {row["system"]: row["values"] for row in both.table}
    for name, copy in zip(("a", "bm25", words[2]), again, strict=True):
        ours, theirs = (
            rows_of(own, name.rpartition("/")[2].removesuffix(".json")),
            rows_of(both, copy),
        )
        assert [x | {"system": ""} for x in theirs.values()] == [
            x | {"system": ""} for x in ours.values()
        ]
        for metric, cell in cells[name].items():
            assert {k: cell[k] for k in ("mean", "low", "high")} == {
                k: cells[copy][metric][k] for k in ("mean", "low", "high")
            }
    assert cells[again[1]]["ndcg@10"]["against_base"]["difference"] == 0
    assert cells[again[1]]["ndcg@10"]["against_base"]["p"] == 1
    assert 0 < cells["a"]["ndcg@10"]["mean"] < 1 and 0 < cells[words[2]]["exact_match"]["mean"] < 1


def test_answers_are_tested_against_answers(model, told, tmp_path):
    right = references(told)
    write_rows(tmp_path / "all.jsonl", [{"id": q, "prediction": a} for q, a in right.items()])
    some = [{"id": q, "prediction": f"It is {a}"} for q, a in right.items() if q > "q2"]
    write_rows(tmp_path / "some.jsonl", [*some, {"id": "other", "prediction": "x"}])
    words = [model, f"answers:{tmp_path}/all.jsonl", f"answers:{tmp_path}/some.jsonl"]
    comparison = compare(words, told)
    retriever, every, part = (row["values"] for row in comparison.table)
    assert set(retriever) == {"recall@5", "recall@10", "ndcg@10", "mrr"}
    assert set(every) == set(part) == {"exact_match", "answer_f1", "any_hit"}
    assert {x["mean"] for x in every.values()} == {1.0}
    assert part["exact_match"]["mean"] == 0 and part["any_hit"]["mean"] == 5 / 8
    assert part["answer_f1"]["mean"] == pytest.approx(5 / 8 * 0.5)  # one of three words, recall 1
    tested = part["any_hit"]["against_base"]
    assert tested["difference"] == -3 / 8 and tested["p"] == 0.25  # 3 questions, 8 ways to sign
    told_of = " | ".join(comparison.remarks)
    assert "some: 3 of 8 questions have no answer, which counts 0; 1 of its questions" in told_of
    assert "all, some: answers alone, so metrics of rankings are –" in told_of
    assert "metrics of answers are tested against all" in told_of
    page = save(comparison, tmp_path).read_text()
    assert "exact match, differences to all" in page and "nDCG@10, differences" not in page
    alone = compare(words, told, metrics=["answer_f1"])
    f1 = [row["values"].get("answer_f1") for row in comparison.table]
    assert [row["values"].get("answer_f1") for row in alone.table] == f1
    assert text_of(alone).splitlines()[1].split() == ["a", "–"]


@pytest.mark.parametrize("name", ["hotpotqa", "musique", "narrativeqa", "qmsum"])
def test_published_predictions_give_the_published_figure(name, tmp_path):
    """Answers need neither documents nor a retriever."""
    folder = DATA / "longbench_preds"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set ARK_DATA to compare with published scores")
    metric = "rouge_l" if name == "qmsum" else "answer_f1"
    if metric == "rouge_l":
        pytest.importorskip("rouge", reason="extra [evaluate] is not installed")
    rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    write_rows(
        tmp_path / "test.jsonl",
        [{"id": str(i), "question": f"{i}?", "answers": x["answers"]} for i, x in enumerate(rows)],
    )
    write_rows(
        tmp_path / "mistral.jsonl", [{"id": i, "pred": x["pred"]} for i, x in enumerate(rows)]
    )
    word = f"answers:{tmp_path / 'mistral.jsonl'}"
    comparison = compare([word], tmp_path / "test.jsonl", metrics=[metric])
    mean = comparison.table[0]["values"][metric]["mean"]
    assert round(100 * mean, 2) == json.loads((folder / "result.json").read_text())[name]
    assert not (tmp_path / "cache").exists()
    assert "intervals and tests draw questions" in comparison.remarks


@pytest.mark.parametrize(
    ("rows", "metrics", "message"),
    [
        ([{"id": "x", "ranking": ["d00"]}], (), r"none of its 1 questions, such as 'x', is in"),
        ([{"id": "q0", "ranking": ["x"]}], (), r"none of its documents, such as 'x', is in the"),
        ([{"id": "q0", "ranking": ["d00", "d00#0000"]}], (), "ranks a passage both by its id"),
        ([{"id": "q0", "ranking": ["long"]}], (), "'long', which has .* passages; --chunk-tokens"),
        ([{"id": "q0", "ranking": ["d00"]}], ("exact_match",), "exact_match measures answers"),
    ],
)
def test_rankings_that_do_not_fit_are_refused(rows, metrics, message, model, told, tmp_path):
    write_rows(tmp_path / "r.jsonl", rows)
    corpus = [{"id": id, "text": text} for id, text in TEXTS.items() if text]
    long = {"id": "long", "text": " ".join(["word"] * 300)}
    write_rows(tmp_path / "documents.jsonl", [*corpus, long])
    data, corpus = f"{told}/questions.jsonl", tmp_path / "documents.jsonl"
    words = [model, f"run:{tmp_path}/r.jsonl"]
    with pytest.raises(ValueError, match=message):
        compare(words, data, corpus=corpus, metrics=metrics)


def test_answers_that_cannot_be_measured_are_refused(model, tmp_path):
    data = beir_folder(tmp_path / "data", TEXTS, QUERIES, judged(1))
    write_rows(tmp_path / "r.jsonl", [{"id": "q0", "answer": "x"}])
    word = f"answers:{tmp_path}/r.jsonl"
    with pytest.raises(ValueError, match=r"no question has an answer, so .*r.jsonl cannot be"):
        compare([word], data)
    with pytest.raises(ValueError, match="add one that measures answers: answer_f1"):
        compare([model, word], data, metrics=["mrr"])
    with pytest.raises(ValueError, match="mrr measures rankings; add a retriever or run:FILE"):
        compare([word], data, metrics=["mrr", "answer_f1"])


def test_rows_of_files_are_named_by_the_file():
    names = lambda *words: [system.name for system in parse_systems(words)]
    assert names("m", "run:r/light.trec.gz", "answers:hippo.jsonl", "run:q.parquet#m2") == [
        "m",
        "light",
        "hippo",
        "m2",
    ]
    assert names("m", "run:a.trec", "answers:a.jsonl", "run:q.parquet#m") == [
        "m",
        "run:a.trec",
        "answers:a.jsonl",
        "run:q.parquet#m",
    ]
    assert parse_systems(["answers:a.jsonl"])[0].file == "a.jsonl"
    with pytest.raises(ValueError, match="name a retriever too"):
        parse_systems(["run:a.trec", "bm25"])
