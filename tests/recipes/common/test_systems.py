"""The systems of the closing table: BM25, fusion, whole documents, other retrievers; and what the
table says of them."""

import collections
import importlib.util
import shutil
import types

import numpy as np
import pytest
from support import tiny

from ark_jax.data.records import Chunk, Document, Question
from ark_jax.models.language import LanguageModel
from ark_jax.pipeline import engine
from ark_jax.pipeline.tables import load_json, save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.common import evaluate, retrieve
from ark_jax.recipes.common.corpus import save_chunks
from ark_jax.report.results import metric_heading
from ark_jax.retrieval.fusion import fuse
from ark_jax.runtime.log import Metrics
from ark_jax.text import prompts
from ark_jax.text.tokens import load_tokenizer

needs_bm25 = pytest.mark.skipif(
    not (importlib.util.find_spec("bm25s") and importlib.util.find_spec("Stemmer")),
    reason="extra [evaluate] is not installed",
)


DOCUMENTS = [Document("a", "", "tide lamp salt. " * 40), Document("b", "", "wool pilot bell. " * 3)]
CHUNKS = {
    d.id: [Chunk(f"{d.id}#{i}", d.id, i, i + 1, 3, text) for i, text in enumerate(texts)]
    for d, texts in zip(
        DOCUMENTS,
        (["the tide", "a lamp", "tide and lamp"], ["some wool", "a pilot", "no bell"]),
        strict=True,
    )
}
QUESTIONS = [
    Question("q0", "which lamp?", ("lamp",), ("a",)),
    Question("q1", "which pilot has wool?", ("a pilot",), ("b",)),
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A context whose retrievers tell texts apart by their first letters, each in its own way; what
    was embedded is counted."""
    (tmp_path / "w" / "data").mkdir(parents=True)
    save_rows(DOCUMENTS, tmp_path / "w" / "data" / "documents.parquet")
    save_rows(QUESTIONS, tmp_path / "w" / "data" / "questions_held_out.parquet")
    save_chunks([x for some in CHUNKS.values() for x in some], tmp_path / "w" / "data")
    embedded = collections.Counter()

    def encode(context, which, texts, kind, label=""):
        embedded[which, kind] += 1
        drawn = [np.random.default_rng([len(which), *t.encode()]).standard_normal(4) for t in texts]
        return np.array([x / np.linalg.norm(x) for x in drawn], np.float32)

    monkeypatch.setattr(retrieve, "encode", encode)
    c = config.ark()
    context = engine.Context(c, tmp_path / "w", Metrics(tmp_path / "metrics.jsonl"))
    return types.SimpleNamespace(context=context, c=c, folder=tmp_path, embedded=embedded)


def rank(run) -> dict:
    (run.folder / "w" / "baselines").mkdir(exist_ok=True)
    folder = run.folder / "w" / "baselines"
    counts = retrieve.retrieve_baselines(run.context, folder, systems=systems(run.c))
    assert counts == {"systems": len(list((run.folder / "w" / "baselines").iterdir()))}
    return retrieve.retrieve_all(run.context, systems(run.c), QUESTIONS, CHUNKS, run.folder)


@needs_bm25
def test_each_system_ranks_and_the_last_stage_stands_last(run):
    run.c.evaluate.baselines, run.c.evaluate.retrievers = ("full", "bm25"), ("/models/other-one/",)
    run.c.evaluate.hybrids = ("bm25+stage3", "base+other-one")
    found = rank(run)
    assert list(found) == [
        "base",
        "full",
        "bm25",
        "other-one",
        "bm25+stage3",
        "base+other-one",
        "stage1",
        "stage2",
        "stage3",
    ]
    assert found["full"] == {"q0": [], "q1": []}
    assert found["bm25"] == {"q0": ["a#1", "a#2"], "q1": ["b#1", "b#0"]}
    assert found["bm25+stage3"]["q1"] == fuse([found["bm25"]["q1"], found["stage3"]["q1"]], 20)
    for name in ("base", "other-one", "stage1"):
        assert {q: sorted(some) for q, some in found[name].items()} == {
            "q0": ["a#0", "a#1", "a#2"],
            "q1": ["b#0", "b#1", "b#2"],
        }
    assert run.embedded == {
        (name, kind): 1
        for name in ("base", "stage1", "stage2", "stage3", "other-one")
        for kind in ("query", "document")
    }
    # Kept per system: a killed run embeds only what is not there.
    (run.folder / "ranked-stage2.parquet").unlink()
    assert (
        rank(run) == found
        and run.embedded["stage2", "query"] == 2
        and run.embedded["base", "query"] == 1
    )


def test_a_question_whose_answer_is_nowhere_is_not_measured(run):
    """As trec_eval leaves out queries without judgements; where all are such, the table says zero
    and the run how many."""
    run.c.evaluate.read, run.c.evaluate.randomisation = 0, 100
    nowhere = Question("q2", "which bell?", ("zinc",), ("b",))
    rank(run)
    for questions, mean in ((QUESTIONS, None), ([*QUESTIONS, nowhere], None), ([nowhere], 0.0)):
        save_rows(questions, run.folder / "w" / "data" / "questions_held_out.parquet")
        folder = run.folder / f"evaluated{len(questions)}"
        folder.mkdir()
        shutil.rmtree(run.folder / "w" / "baselines")
        (run.folder / "w" / "baselines").mkdir()
        baselines = run.folder / "w" / "baselines"
        retrieve.retrieve_baselines(run.context, baselines, systems=systems(run.c))
        counts = evaluate.evaluate(run.context, folder, systems=systems(run.c))
        assert counts.get("without_gold", 0) == (nowhere in questions)
        values = load_json(folder / "metrics.json")["table"][0]["values"]["recall@5"]
        assert values["mean"] == (
            1.0 if mean is None else mean
        )  # three chunks a document: all are among the first five


def test_by_default_base_and_stages_are_ranked(run):
    assert list(rank(run)) == ["base", "stage1", "stage2", "stage3"]
    run.c.train.stages = (0,)
    assert systems(run.c).names == ["base", "stage0"]


def test_lists_reach_as_far_as_metrics_and_reader_look(run):
    run.c.evaluate.scope = "corpus"
    assert systems(run.c).depth == 20 and len(rank(run)["base"]["q0"]) == 6
    run.c.evaluate.metrics = ("recall@30", "map", "hit@100", "ndcg@5")
    assert systems(run.c).depth == 100
    run.c.evaluate.metrics, run.c.evaluate.passages = ("mrr",), 25
    assert systems(run.c).depth == 25


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"scope": "documents"}, "scope='documents': must be document or corpus"),
        ({"gold": "passages"}, "gold='passages': must be evidence or answers"),
        ({"metrics": ("ndgc@10",)}, "metric 'ndgc@10': must be recall"),
        (
            {"baselines": ("BAAI/bge-m3",)},
            "'BAAI/bge-m3' is none of bm25, full; name other retrievers in config.evaluate.retrievers",  # noqa: E501
        ),
        ({"retrievers": ("a/one", "b/one")}, "two systems would be called 'one'"),
        ({"retrievers": ("x/stage1",)}, "two systems would be called 'stage1'"),
        (
            {"hybrids": ("bm25+base",)},
            "'bm25[+]base' must join two or more of base, stage1, stage2, stage3 by [+]",
        ),
        ({"hybrids": ("stage9",)}, "'stage9' must join two or more"),
        ({"hybrids": ("base+base",)}, "'base[+]base' must join two or more"),
        (
            {"baselines": ("full",), "hybrids": ("base+full",)},
            "'base[+]full' must join two or more of base, stage1",
        ),
    ],
)
def test_what_is_measured_must_be_clear_before_any_work(changes, says):
    c = config.ark()
    c.evaluate.update(changes)
    with pytest.raises(ValueError, match=says):
        stages(c)


def test_bm25_asked_for_and_not_installed_is_told_first(monkeypatch):
    c = config.ark()
    c.evaluate.baselines = ("bm25",)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "Stemmer" else find(name, *more),
    )
    with pytest.raises(
        RuntimeError, match=r"BM25 needs (bm25s and )?PyStemmer: pip install 'ark-jax\[evaluate\]'"
    ):
        stages(c)


def test_answer_metrics_are_known_and_at_hand_before_any_work(monkeypatch):
    c = config.ark()
    c.evaluate.answers = ("answer_f1", "bleu")
    with pytest.raises(
        ValueError,
        match=r"config.evaluate.answers: 'bleu' is none of answer_f1, exact_match, rouge_l",
    ):
        stages(c)
    c.evaluate.answers = ("rouge_l",)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == "rouge" else find(name, *more),
    )
    with pytest.raises(
        RuntimeError, match=r"ROUGE-L needs the library rouge: pip install 'ark-jax\[evaluate\]'"
    ):
        stages(c)


class Reader:
    """As much of a language model as has a window."""

    _token_ids, prompt_ids = LanguageModel._token_ids, LanguageModel.prompt_ids

    def __init__(self, tokenizer, max_length: int):
        self.tokenizer, self.max_length = tokenizer, max_length

    def chat(self, text: str) -> str:
        return f"<s>{text}</s>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(
        str(tiny.write(tmp_path_factory.mktemp("reader"), "llama", tokenizer="begin"))
    )


def test_whole_documents_fill_the_window_and_no_more(run, tokenizer, monkeypatch):
    run.c.evaluate.baselines, run.c.evaluate.passages, run.c.evaluate.max_new_tokens = (
        ("full",),
        1,
        7,
    )
    ranked = {"full": {}, "base": {"q0": ["a#1", "a#0"], "q1": ["b#0"]}}
    texts = {x.id: x.text for some in CHUNKS.values() for x in some}
    size = lambda q, text, lm: len(
        tokenizer(lm.chat(prompts.fill(prompts.load("read"), question=q.question, passages=text)))[
            "input_ids"
        ]
    )
    monkeypatch.setattr(retrieve, "load_generator", lambda context, path: lm)
    lm = Reader(tokenizer, size(QUESTIONS[0], DOCUMENTS[0].text[:200], Reader(tokenizer, 0)) + 7)
    context_of, cut = retrieve.passages_for_reader(run.context, ranked, QUESTIONS, texts)
    assert cut == 1 and context_of("base", QUESTIONS[0]) == ["a lamp"]
    assert context_of("full", QUESTIONS[1]) == [DOCUMENTS[1].text]
    (given,) = context_of("full", QUESTIONS[0])
    assert (
        DOCUMENTS[0].text.startswith(given)
        and lm.max_length - 9 <= size(QUESTIONS[0], given, lm) + 7 < lm.max_length
    )
    lm.max_length = 20
    with pytest.raises(
        ValueError,
        match="prompt read and 7 new tokens leave no room in the 20 that the reader takes",
    ):
        retrieve.passages_for_reader(run.context, ranked, QUESTIONS, texts)


def rows(**values: list) -> list[dict]:
    """Questions of systems, with these values of nDCG@10 and (but of full) recall@5 of half as
    much."""
    return [
        {
            "system": name,
            "question": f"q{i}",
            "ndcg@10": x,
            "answer_f1": x if x is not None else i / 9,
            "recall@5": x if x is None else x / 2,
        }
        for name, some in values.items()
        for i, x in enumerate(some)
    ]


BASE = [0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.2, 0.6]
COLUMNS = ("ndcg@10", "recall@5", "answer_f1")


def tabulated(**values):
    return evaluate.tabulate(rows(base=BASE, **values), COLUMNS, draws=200, flips=5000, seed=3)


def test_differences_to_base_are_tested_and_corrected():
    table = tabulated(
        full=[None] * 8,
        stage1=[x + 0.1 for x in BASE],
        stage2=[x + 0.1 * (-1) ** i for i, x in enumerate(BASE)],
    )
    assert [row["system"] for row in table] == ["base", "full", "stage1", "stage2"]
    assert set(table[1]["values"]) == {
        "answer_f1"
    }  # without retrieval there is none of it to measure
    assert "against_base" not in table[0]["values"]["ndcg@10"]
    first, second = (row["values"]["ndcg@10"]["against_base"] for row in table[2:])
    assert first == pytest.approx(
        {"difference": 0.1, "low": 0.1, "high": 0.1, "p": 2 / 256, "p_holm": 4 / 256}
    )
    assert (second["difference"], second["p"], second["p_holm"]) == pytest.approx(
        (0, 1, 1), abs=1e-9
    )
    assert table[2]["values"]["answer_f1"]["against_base"]["p_holm"] == pytest.approx(
        3 * 2 / 256
    )  # full is a third comparison


def test_the_closing_table_marks_what_differs():
    table = tabulated(
        full=[None] * 8,
        stage1=[x + 0.1 for x in BASE],
        stage2=[x + 0.05 * (i < 3) for i, x in enumerate(BASE)],
    )
    lines = evaluate._as_text(table, COLUMNS).splitlines()
    assert len(lines) == 6 and lines[0].split() == ["system", "nDCG@10", "recall@5", "answer", "F1"]
    assert [line.split()[0] for line in lines[1:5]] == ["base", "full", "stage1", "stage2"]
    assert [line.count("]*") for line in lines[1:5]] == [0, 0, 3, 0] and lines[2].count("–") == 2
    ends = {line.index("]", 11) for line in lines[1:5] if "–" not in line}
    assert (
        len(ends) == 1 and lines[0].index("nDCG@10") + len("nDCG@10") - 1 in ends
    )  # columns stand under their heads
    assert (
        lines[5]
        == "  * differs from base, p < 0.05: paired randomisation test, two-sided, Holm-corrected over systems"  # noqa: E501
    )
    unmarked = evaluate._as_text(tabulated(stage1=BASE), COLUMNS).splitlines()[-1]
    assert (
        unmarked == "  No difference from base has p < 0.05: paired randomisation test, two-sided"
    )


@pytest.mark.parametrize(
    "moved, says",
    [
        (
            [0.1] * 8,
            "Better than the base on the held-out questions: nDCG@10 +0.100 (p = 0.0078), recall@5 +0.050 (p = 0.0078)",  # noqa: E501
        ),
        (
            [-0.1] * 8,
            "Worse than the base on the held-out questions: nDCG@10 -0.100 (p = 0.0078), recall@5 -0.050 (p = 0.0078)",  # noqa: E501
        ),
        (
            [0.1] * 3 + [0] * 5,
            "Not told apart from the base on the held-out questions: nDCG@10 +0.038 (p = 0.25)",
        ),
        ([0] * 8, "Not told apart from the base on the held-out questions: nDCG@10 +0.000 (p = 1)"),
    ],
)
def test_the_verdict_tells_what_chance_may_explain(moved, says):
    table = tabulated(stage1=[x + y for x, y in zip(BASE, moved, strict=True)])
    told = evaluate.verdict(table, COLUMNS, ("stage1", "stage2"))
    assert told.startswith(says) and "(paired randomisation test, two-sided)." in told
    assert told.endswith("nDCG@10 fell at stage1.") == (moved[0] < 0)


def test_a_verdict_may_go_both_ways_and_speaks_of_the_last_stage():
    some = rows(
        base=BASE, full=[None] * 8, stage1=[x - 0.1 for x in BASE], stage2=[x + 0.1 for x in BASE]
    )
    for row in some:
        if row["system"] == "stage2":
            row["recall@5"] -= 0.2
    table = evaluate.tabulate(some, COLUMNS, draws=200, flips=5000, seed=3)
    told = evaluate.verdict(table, ("ndcg@10", "recall@5"), ("stage1", "stage2"))
    assert told.startswith(
        "Better and worse than the base on the held-out questions: nDCG@10 +0.100 (p = 0.016), "
        "recall@5 -0.150 (p = 0.016) (paired"
    )
    assert told.endswith("Holm-corrected over systems). nDCG@10 fell at stage1.")


def test_gold_may_be_passages_or_answers(run):
    documents = [Document("a", "", "the tide. the lamp. the tide again.")]
    save_rows(documents, run.context / "data" / "documents.parquet")
    chunks = {
        "a": [
            Chunk("a#0", "a", 0, 9, 2, "the tide."),
            Chunk("a#1", "a", 10, 19, 2, "the lamp."),
            Chunk("a#2", "a", 20, 35, 3, "the tide again."),
        ]
    }
    asked = [
        Question("marked", "what?", ("Tide",), ("a",), ("the lamp.",)),
        Question("unmarked", "what?", ("TIDE",), ("a",)),
        Question("nowhere", "what?", ("tid",), ("a",)),
    ]
    gold, unmarked = evaluate._gold(run.context, asked, chunks)
    assert (
        gold == {"marked": [["a#1"]], "unmarked": [["a#0", "a#2"]], "nowhere": []} and unmarked == 2
    )
    run.c.evaluate.gold = "answers"
    gold, unmarked = evaluate._gold(run.context, asked, chunks)
    assert (
        gold == {"marked": [["a#0", "a#2"]], "unmarked": [["a#0", "a#2"]], "nowhere": []}
        and unmarked == 2
    )


@pytest.mark.parametrize(
    "metric, shown",
    [
        ("ndcg@10", "nDCG@10"),
        ("mrr", "MRR"),
        ("map@5", "MAP@5"),
        ("hit@3", "hit rate@3"),
        ("recall@5", "recall@5"),
        ("precision@1", "precision@1"),
        ("answer_f1", "answer F1"),
    ],
)
def test_metrics_are_shown_by_their_usual_names(metric, shown):
    assert metric_heading(metric) == shown


def test_another_retriever_decides_whether_baselines_are_due():
    c, prints = (
        config.ark(),
        lambda c: next(s for s in stages(c) if s.name == "baselines").external(c),
    )
    c.retriever.path = c.generator.path = "a-name/that-is-not-fetched"
    before = prints(c)
    c.evaluate.retrievers = ("BAAI/bge-m3",)
    assert prints(c) == before | {"retriever BAAI/bge-m3": "BAAI/bge-m3"}
