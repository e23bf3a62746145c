"""What an input may be, and what the data stage makes of it."""

import json
import shutil

import pytest
from support.world import call_here, make_world, tiny_config

from ark_jax.data.records import BadInput
from ark_jax.models import sentence_folder
from ark_jax.pipeline import engine
from ark_jax.pipeline.fingerprints import input_digest
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents import ingest
from ark_jax.recipes.documents.corpus import chunks_by_document
from ark_jax.runtime.log import Metrics
from ark_jax.text.tokens import load_tokenizer


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def test_a_broken_input_is_refused_before_any_work(world, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(world / "corpus", corpus)
    with (corpus / "questions.jsonl").open("a") as file:
        file.write(
            '{"id": "x", "question": "Why?", "answers": [7], "documents": ["tidal-board"]}\n'
        )
    done = call_here(world, tmp_path / "w", "run", f"--config.data.path={corpus}")
    assert done.returncode == 1
    assert (
        "questions.jsonl:" in done.stderr
        and "answers" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert not (tmp_path / "w" / "data").exists()


def ingested(world, workdir, **changes):
    """The context after the data stage, with changed fields of `data`."""
    c = tiny_config(world)
    c.data.update(changes)
    context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
    (context / "data").mkdir(parents=True)
    ingest.ingest(context, context / "data")
    return context


@pytest.mark.parametrize("chunking", ["tokens", "sentences"])
def test_the_default_chunk_and_title_fit_the_retriever(world, tmp_path, chunking, capsys):
    context = ingested(world, tmp_path / "w", chunk_tokens=0, chunking=chunking)
    assert "chunks have at most 62 tokens, less their title" in capsys.readouterr().out
    folder = world / "retriever"
    tokenizer = load_tokenizer(str(folder))
    assert sentence_folder.read_max_length(folder, tokenizer) == 64
    by_document = chunks_by_document(context)
    for chunks in by_document.values():
        lengths = [len(tokenizer(chunk.passage)["input_ids"]) for chunk in chunks]
        if chunking == "sentences":
            assert max(lengths) <= 64
        else:  # half a word at an end may be other tokens than it was within the document
            assert all(62 <= length <= 66 for length in lengths[:-1])
    assert all(chunk.title for chunks in by_document.values() for chunk in chunks)


def test_what_is_passed_over_is_named(world, tmp_path, capsys):
    corpus = shutil.copytree(world / "corpus", tmp_path / "corpus")
    with (corpus / "questions.jsonl").open("a") as file:
        file.write('{"id": "x", "question": "Why?", "answers": [7]}\n')
    ingested(world, tmp_path / "w", path=str(corpus), tolerate=0.5)
    out = capsys.readouterr().out
    assert f"  {corpus}/questions.jsonl:" in out and "answers" in out, out


def test_an_explicit_chunk_length_is_kept(world, tmp_path):
    chunks = chunks_by_document(ingested(world, tmp_path / "w", chunk_tokens=80))
    assert {c.tokens for group in chunks.values() for c in group[:-1]} == {80}


def test_an_overlap_above_the_chunk_length_is_refused(world, tmp_path):
    with pytest.raises(ValueError, match=r"chunk_overlap=40: must be below 31, the least tokens"):
        ingested(world, tmp_path / "w", chunk_tokens=0, chunk_overlap=40)


def test_questions_may_be_in_a_separate_file(world, tmp_path):
    documents, questions = (world / "corpus" / f"{x}.jsonl" for x in ("documents", "questions"))
    elsewhere = tmp_path / "asked.json"
    elsewhere.write_text(f"[{','.join(questions.read_text().splitlines())}]")
    beside = ingested(world, tmp_path / "beside")
    apart = ingested(world, tmp_path / "apart", path=str(documents), questions=str(elsewhere))
    for name in ("questions_train.parquet", "questions_held_out.parquet", "chunks.arrow"):
        assert (apart / "data" / name).read_bytes() == (beside / "data" / name).read_bytes()
    c, data = apart.config, stages(apart.config)[:1]
    engine.run(data, Context(c, tmp_path / "run", apart.metrics))
    elsewhere.write_text("[]")
    input_digest.cache_clear()
    (status,) = examine(data, c, tmp_path / "run")
    assert status.why == "the input of config.data.questions changed"
    with pytest.raises(BadInput, match=r"asked\.json"):
        ingest.describe_input(c)


def test_questions_without_any_answer_are_refused_with_the_fix(world, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(world / "corpus", corpus)
    rows = map(json.loads, (corpus / "questions.jsonl").read_text().splitlines())
    lines = [json.dumps({**row, "answers": []}) + "\n" for row in rows]
    (corpus / "questions.jsonl").write_text("".join(lines))
    done = call_here(world, tmp_path / "w", "data", f"--config.data.path={corpus}")
    assert done.returncode == 1 and "questions has an answer, so none can be" in done.stderr
    assert "--config.questions.source=written" in done.stderr
    assert "--config.score.supervision=gold" in done.stderr


def test_a_run_reports_that_questions_search_only_their_documents(world, tmp_path):
    done = call_here(world, tmp_path / "w", "data")
    assert done.returncode == 0, done.stderr
    assert "config.data.pool=corpus searches all 78 chunks" in done.stdout + done.stderr
