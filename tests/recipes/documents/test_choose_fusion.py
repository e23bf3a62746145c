"""How BM25 and the last tuned retriever are joined: chosen on training questions, then used."""

import shutil

import numpy as np
import pytest
from support.ranking import QUESTIONS, rank

from ark_jax.data.records import Question
from ark_jax.evaluate.retrieval import measure
from ark_jax.pipeline.tables import load_json, load_rows, save_rows
from ark_jax.recipes.ark import config
from ark_jax.recipes.ark.curriculum import systems
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents.choice import FUSION, choose_fusion, listed_fusions
from ark_jax.recipes.documents.corpus import gold_passages, stored_chunks
from ark_jax.recipes.documents.retrieve import load_search, ranked_file, retrieve_all
from ark_jax.retrieval.fusion import Fusion, load_fusion


def choose(run, questions: list[Question], learned=frozenset()) -> dict:
    save_rows(questions, run.context / "data" / "questions_train.parquet", Question)
    folder = run.context / FUSION
    folder.mkdir()
    return choose_fusion(run.context, folder, systems_of=systems, learned=lambda context: learned)


def test_the_best_fusion_on_training_questions_is_chosen(run):
    asked = [
        Question("t0", "which lamp and tide?", ("lamp",), ("a",)),
        Question("t1", "which pilot?", ("pilot",), ("b",)),
        Question("t2", "which bell or wool?", ("wool",), ("b",)),
        Question("t3", "the tide?", ("again",), ("a",)),  # no chunk holds the answer
    ]
    counts = choose(run, asked)
    folder = run.context / FUSION
    chosen, rows = load_fusion(folder), load_json(folder / "candidates.json")
    chunks = stored_chunks(run.context)
    gold, _ = gold_passages(run.context, asked, chunks.by_document)
    names = ("bm25", "stage3")
    found = {name: load_search(ranked_file(folder, name), asked[:3]) for name in names}
    words, vectors = (
        {q.id: x.pairs() for q, x in zip(asked[:3], found[name].rankings, strict=True)}
        for name in names
    )
    means = []
    for fusion in listed_fusions(20):
        ranked = {id: [x for x, _ in fusion.join(words[id], vectors[id])] for id in words}
        means.append(
            np.mean([measure(ranked[id], gold[id], ["ndcg@10"])["ndcg@10"] for id in words])
        )
    assert [row["ndcg@10"] for row in rows] == pytest.approx(means)
    assert chosen == listed_fusions(20)[int(np.argmax(means))]
    assert counts == {"questions": 3, "by": chosen.by, "dense": chosen.dense}


def test_unlearned_questions_choose_the_fusion_if_there_are_enough(run, monkeypatch, capsys):
    asked = [
        Question("t0", "which lamp and tide?", ("lamp",), ("a",)),
        Question("t1", "which pilot?", ("pilot",), ("b",)),
        Question("t2", "which bell or wool?", ("wool",), ("b",)),
    ]
    assert choose(run, asked, {"t0"})["questions"] == 3
    assert "3 training questions" in capsys.readouterr().out
    of_all = load_json(run.context / FUSION / "candidates.json")
    for enough, choosing in ((3, 3), (2, 2)):
        monkeypatch.setattr("ark_jax.recipes.documents.choice.ENOUGH_TO_FUSE", enough)
        shutil.rmtree(run.context / FUSION)
        assert choose(run, asked, {"t0"})["questions"] == choosing
    assert "2 training questions that the retriever has not learned from" in capsys.readouterr().out
    assert {row["question"] for row in load_rows(run.context / FUSION / "ranked-bm25.parquet")} == {
        "t0",
        "t1",
        "t2",
    }
    shutil.rmtree(run.context / FUSION)
    choose(run, asked[:1])
    pairs = zip(of_all, load_json(run.context / FUSION / "candidates.json"), strict=True)
    rest = [3 * all_three["ndcg@10"] - first["ndcg@10"] for all_three, first in pairs]
    shutil.rmtree(run.context / FUSION)
    choose(run, asked, {"t0"})
    without = [row["ndcg@10"] for row in load_json(run.context / FUSION / "candidates.json")]
    assert [2 * value for value in without] == pytest.approx(rest)


def test_the_fusion_stage_is_added_only_on_request():
    c = config.ark()
    c.retriever.path = c.generator.path = "a-name/that-is-not-fetched"
    names = lambda: [stage.name for stage in stages(c)]
    assert FUSION not in names()
    c.evaluate.fusion = "chosen"
    assert names()[names().index("stage2") :][:3] == ["stage2", FUSION, "evaluate"]


def test_without_usable_questions_the_default_fusion_is_kept(run):
    assert choose(run, [Question("t", "the tide?", ("again",), ("a",))])["questions"] == 0
    assert load_fusion(run.context / FUSION) == Fusion()


def test_the_table_ranks_by_the_chosen_fusion(run):
    run.c.evaluate.hybrids = ("bm25+tuned", "bm25+base")
    by_ranks = rank(run)
    words_alone = Fusion(bm25=1.0, dense=0.0, by="scores")
    chunks = stored_chunks(run.context)
    ranked = retrieve_all(run.context, systems(run.c), QUESTIONS, chunks, run.folder, words_alone)
    for question in QUESTIONS:
        by_words = ranked["bm25"][question.id]
        assert by_words and ranked["bm25+stage3"][question.id][: len(by_words)] == by_words
    plain_systems = set(ranked) - {"bm25+stage3"}
    assert "bm25+base" in plain_systems and {x: ranked[x] for x in plain_systems} == {
        x: by_ranks[x] for x in plain_systems
    }
