"""Each system ranks chunks as deep as metrics and reader look."""

import json

import numpy as np
import pytest
from support import pairs, tiny
from support.brute_force import fuse
from support.llm_calls import completion
from support.ranking import CHUNKS, DOCUMENTS, QUESTIONS, rank

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.models.language import LanguageModel
from ark_jax.models.pairs import CrossEncoder
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.documents import retrieve
from ark_jax.recipes.documents.reader import fit_all, retrieved_passages
from ark_jax.text import prompts
from ark_jax.text.tokens import load_tokenizer


def test_each_system_ranks_the_chunks_of_a_question(run):
    run.c.evaluate.baselines, run.c.evaluate.retrievers = ("full", "bm25"), ("/models/other-one/",)
    run.c.evaluate.hybrids = ("bm25+stage3", "base+other-one")
    rankings = rank(run)
    assert list(rankings) == [
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
    assert rankings["full"] == {"q0": [], "q1": []}
    assert rankings["bm25"] == {"q0": ["a#1", "a#2"], "q1": ["b#1", "b#0"]}
    assert rankings["bm25+stage3"]["q1"] == fuse(
        [rankings["bm25"]["q1"], rankings["stage3"]["q1"]], 20
    )
    for name in ("base", "other-one", "stage1"):
        assert {q: sorted(ranked) for q, ranked in rankings[name].items()} == {
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
        rank(run) == rankings
        and run.embedded["stage2", "query"] == 2
        and run.embedded["base", "query"] == 1
    )


@pytest.mark.parametrize("kind", ["encoder", "decoder", "trained"])
def test_a_reranker_reorders_the_results_of_the_last_system(kind, run, tmp_path, mesh):
    folder = tmp_path / "reranker"
    if kind == "trained":
        folder = run.folder / "w" / "reranker" / "model"
    if kind != "decoder":
        pairs.write_classifier(folder, "bert")
    else:
        pairs.write_yes_no(folder)
    reranker = CrossEncoder.from_pretrained(folder)
    run.c.evaluate.hybrids = ()
    if kind == "trained":
        run.c.train.kind = "cross"
    else:
        run.c.evaluate.rerank = str(folder)
    ranked = rank(run)
    assert list(ranked) == ["base", "bm25", "stage3 + reranker", "stage1", "stage2", "stage3"]
    texts = {chunk.id: chunk.passage for group in CHUNKS.values() for chunk in group}
    for question in QUESTIONS:
        before, after = (ranked[name][question.id] for name in ("stage3", "stage3 + reranker"))
        scores = reranker.score([(question.question, texts[chunk]) for chunk in before])
        assert after == [before[i] for i in np.argsort(-scores)]
    assert any(ranked["stage3"][q.id] != ranked["stage3 + reranker"][q.id] for q in QUESTIONS)
    # It is kept: a run that goes on opens no reranker.
    (folder / "config.json").unlink()
    assert rank(run) == ranked


def test_hyde_is_evaluated_as_a_system_of_its_own(run):
    passages = {"q0": "The lamp stands in the tower.", "q1": "A pilot in wool."}
    recording = run.folder / "recorded.jsonl"
    rows = [{"item": f"hyde/{q}", "reply": completion(text)} for q, text in passages.items()]
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.c.search.expand, run.c.evaluate.hybrids = "hyde", ("bm25+hyde",)
    run.c.llm.backend, run.c.llm.replies = "replay", str(recording)
    ranked = rank(run)
    assert list(ranked)[:4] == ["base", "bm25", "hyde", "bm25+hyde"]
    embed = lambda text: retrieve.encode(run.context, "base", [text], "query")[0]
    for question, document in zip(QUESTIONS, CHUNKS, strict=True):
        mean = (embed(question.question) + embed(passages[question.id])) / 2
        cosine = lambda chunk, mean=mean: mean @ embed(chunk.passage)
        wanted = [chunk.id for chunk in sorted(CHUNKS[document], key=cosine, reverse=True)]
        assert ranked["hyde"][question.id] == wanted
        assert ranked["bm25+hyde"][question.id] == fuse(
            [ranked["bm25"][question.id], ranked["hyde"][question.id]], 20
        )
    recording.unlink()  # what was found is kept
    assert rank(run) == ranked


def test_bm25_and_a_fusion_are_evaluated_by_default(run):
    ranked = rank(run)
    assert list(ranked) == ["base", "bm25", "bm25+stage3", "stage1", "stage2", "stage3"]
    assert ranked["bm25+stage3"]["q1"] == fuse([ranked["bm25"]["q1"], ranked["stage3"]["q1"]], 20)
    run.c.train.stages = (0,)
    assert systems(run.c).names == ["base", "bm25", "bm25+stage0", "stage0"]


def test_rankings_are_as_deep_as_metrics_and_reader_need(run):
    run.c.evaluate.scope = "corpus"
    assert systems(run.c).depth == 20 and len(rank(run)["base"]["q0"]) == 6
    run.c.evaluate.metrics = ("recall@30", "map", "hit@100", "ndcg@5")
    assert systems(run.c).depth == 100
    run.c.evaluate.metrics, run.c.evaluate.passages = ("mrr",), 25
    assert systems(run.c).depth == 25


def test_results_leave_out_the_document_that_is_the_question(run, monkeypatch, capsys):
    """It searches one more chunk, so that lists are as long as others."""
    run.c.evaluate.scope = "corpus"
    monkeypatch.setattr(retrieve, "DEPTH", 2)
    run.c.evaluate.metrics, run.c.evaluate.passages = ("mrr",), 3
    whole = rank(run)["base"]
    own = {"q0": frozenset(whole["q0"][:1])}
    monkeypatch.setattr(retrieve, "own_chunks", lambda *_: own)
    for file in (*run.folder.glob("**/ranked-*.parquet"),):
        file.unlink()
    left = rank(run)["base"]
    assert left["q1"] == whole["q1"] and left["q0"][:2] == whole["q0"][1:]
    assert len(left["q0"]) == 3 and "1 questions are documents" in capsys.readouterr().out


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


def test_whole_documents_are_cut_to_the_context_window(tokenizer):
    ranked = {"full": {}, "base": {"q0": ["a#1", "a#0"], "q1": ["b#0"]}}
    texts = {x.id: x.text for chunks in CHUNKS.values() for x in chunks}
    size = lambda q, text, lm: len(
        tokenizer(
            lm.chat(prompts.fill(prompts.load_template("read"), question=q.question, passages=text))
        )["input_ids"]
    )
    lm = Reader(tokenizer, size(QUESTIONS[0], DOCUMENTS[0].text[:200], Reader(tokenizer, 0)) + 7)
    form = ReadingPrompt(prompts.load_template("read"))

    def shown(texts: dict[str, str]) -> tuple[dict, int]:
        retrieved = retrieved_passages(ranked, QUESTIONS, texts, DOCUMENTS, 1)
        joined = {key: form.join(passages) for key, passages in retrieved.items()}
        return fit_all(lm, form, QUESTIONS, joined, 7)

    passages, cut = shown(texts)
    assert cut == 1 and passages["base", "q0"] == "a lamp"
    assert passages["full", "q1"] == DOCUMENTS[1].text
    shown_text = passages["full", "q0"]
    assert (
        DOCUMENTS[0].text.startswith(shown_text)
        and lm.max_length - 9 <= size(QUESTIONS[0], shown_text, lm) + 7 < lm.max_length
    )
    long = texts | {"a#1": DOCUMENTS[0].text}  # chunks are cut as documents are
    passages, cut = shown(long)
    assert cut == 1 and passages["base", "q0"] == shown_text
    lm.max_length = 20
    with pytest.raises(
        ValueError,
        match=r"'which lamp\?': .* the prompt and 7 new tokens leave no room in the 20 that",
    ):
        shown(texts)
