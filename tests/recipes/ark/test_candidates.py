"""Which chunks may answer a training question."""

import dataclasses

import pytest
from support.brute_force import bm25
from support.world import make_world, tiny_config

from ark_jax.data.records import Question
from ark_jax.pipeline import engine
from ark_jax.pipeline.manifest import read_manifest
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark.graph import load_candidates
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents.corpus import Passages, load_questions, stored_chunks
from ark_jax.runtime.log import Metrics

pytestmark = pytest.mark.usefixtures("mesh")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def find(world, workdir, **settings):
    c = tiny_config(world)
    c.data.update(settings)
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    for stage in ("data", "candidates"):
        engine.run(stages(c), context, only=stage)
    return context, load_candidates(context)


def test_the_default_candidates_are_all_chunks_of_the_documents(world, tmp_path):
    context, candidates = find(world, tmp_path)
    chunks = stored_chunks(context).by_document
    questions = load_questions(context, "train")
    assert read_manifest(context / "data")["counts"]["pool"] == "documents"
    for question in questions:
        chunk_ids = {chunk.id for document in question.documents for chunk in chunks[document]}
        assert {chunk for chunk, _ in candidates[question.id]} == chunk_ids
        cosines = [cosine for _, cosine in candidates[question.id]]
        assert cosines == sorted(cosines, reverse=True)


def test_a_corpus_is_searched_by_vectors_and_words(world, tmp_path):
    context, candidates = find(world, tmp_path, pool="corpus", candidates=16)
    chunks = stored_chunks(context)
    documents, answered = {chunk.id: chunk.document for chunk in chunks}, 0
    for question in load_questions(context, "train"):
        chosen = [chunk for chunk, _ in candidates[question.id]]
        assert len(chosen) == len(set(chosen)) == 16
        of_documents = [chunk for chunk in chosen if documents[chunk] in question.documents]
        assert len(of_documents) >= 8  # half are the first of its documents
        # The answer is part of what BM25 is asked.
        query, texts = " ".join((question.question, *question.answers)), Passages(chunks)
        best = bm25([query], list(texts.values()), [range(len(texts))], 1)[0][0]
        answered += chunks[best].id in chosen
    chosen = {documents[chunk] for ranked in candidates.values() for chunk, _ in ranked}
    assert answered > 0.6 * len(candidates)
    assert chosen == set(documents.values())  # held-out documents are searched too


def test_questions_without_documents_search_the_whole_corpus(world, tmp_path, monkeypatch, capsys):
    from ark_jax.data import readers

    read = readers.read

    def unnamed(*asked):
        corpus, problems = read(*asked)
        questions = [dataclasses.replace(q, documents=()) for q in corpus.questions]
        return dataclasses.replace(corpus, questions=questions), problems

    monkeypatch.setattr(readers, "read", unnamed)
    context, candidates = find(world, tmp_path, held_out_documents=(), candidates=5)
    assert read_manifest(context / "data")["counts"]["pool"] == "corpus"
    assert "name no document, so the whole corpus is searched" in capsys.readouterr().out
    assert {len(ranked) for ranked in candidates.values()} == {5}
    rows = load_rows(context / "data" / "questions_train.parquet", Question)
    assert {question.documents for question in rows} == {()}
    c = tiny_config(world)
    c.data.update(pool="documents", held_out_documents=())
    workdir = tmp_path / "refused"
    with pytest.raises(ValueError, match="questions name no document; name them"):
        engine.run(stages(c), engine.Context(c, workdir, Metrics(workdir / "m")), only="data")


def test_short_documents_are_searched_together(world, tmp_path, capsys):
    context, _ = find(world, tmp_path, chunk_tokens=400)
    assert read_manifest(context / "data")["counts"]["pool"] == "corpus"
    assert "so candidates come from all" in capsys.readouterr().out
