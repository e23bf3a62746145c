"""ARK with a vector for each token, from documents to the export, on a tiny corpus."""

import functools
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from support import colbert
from support.compare_workdirs import differences
from support.world import make_world, tiny_config

from ark_jax import MultiVectorRetriever, layout
from ark_jax.models.late_settings import PLAIN
from ark_jax.pipeline import engine
from ark_jax.pipeline.status import examine
from ark_jax.pipeline.tables import load_rows
from ark_jax.recipes.ark.recipe import stages
from ark_jax.recipes.documents.corpus import chunks_by_document, load_questions
from ark_jax.retrieval.late import maxsim
from ark_jax.runtime.log import Metrics

pytestmark = pytest.mark.usefixtures("mesh")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def settings(world, pool: str):
    c = tiny_config(world)
    c.retriever.vectors, c.train.temperature = "tokens", 0.02
    c.train.save_every = 100
    if pool == "colbert":
        pool, folder = "corpus", Path(c.retriever.path).with_name("colbert")
        if not folder.is_dir():
            colbert.write(folder, "pylate", query_length=24, skiplist_words=["the", ","])
        c.retriever.path = str(folder)
    c.data.pool, c.data.candidates, c.train.stages = pool, 6, (1, 2)
    c.evaluate.read, c.train.epochs, c.evaluate.scope = 0, (1, 1, 1), "corpus"
    return c


def run(c, workdir: Path, *, forget: bool = False) -> engine.Context:
    for stage in stages(c):
        context = engine.Context(c, workdir, Metrics(workdir / "metrics.jsonl"))
        engine.run(stages(c), context, only=stage.name)
        if forget:
            shutil.rmtree(workdir / "vectors", ignore_errors=True)
    return context


@pytest.fixture(scope="module")
def finished(world, tmp_path_factory):
    """pool -> the context of its finished run."""

    @functools.cache
    def run_of(pool: str) -> engine.Context:
        with jax.set_mesh(layout.make_mesh((1, 1, 1))):
            return run(settings(world, pool), tmp_path_factory.mktemp(pool))

    return run_of


@pytest.mark.parametrize("pool", ["documents", "corpus", "colbert"])
def test_a_run_with_token_vectors_ranks_by_maxsim(world, finished, pool):
    context = finished(pool)
    base = MultiVectorRetriever.from_pretrained(str(settings(world, pool).retriever.path))
    tuned = MultiVectorRetriever.from_pretrained(str(context / "stage2" / "model"))
    exported = MultiVectorRetriever.from_pretrained(str(context / "export"))  # what won
    assert exported.late == base.late and (exported.late != PLAIN) == (pool == "colbert")
    questions = load_questions(context, "held_out")
    chunks = [chunk for group in chunks_by_document(context).values() for chunk in group]
    for retriever, file in (
        (base, "baselines/ranked-base.parquet"),
        (tuned, "evaluate/ranked-stage2.parquet"),
    ):
        queries = retriever.encode([x.question for x in questions], kind="query")
        scores = maxsim(queries, retriever.encode([x.passage for x in chunks], kind="document"))
        by_question = {row["question"]: row for row in load_rows(context / file)}
        for question, row in zip(questions, scores, strict=True):
            ranked = by_question[question.id]
            # Stored with 16 bits, where the whole corpus is searched.
            np.testing.assert_allclose(ranked["scores"], -np.sort(-row)[:20], atol=1e-3)
            best = chunks[int(row.argmax())].id
            assert best == ranked["ranked"][0] or np.ptp(np.sort(row)[-2:]) < 1e-3
    moved = maxsim(tuned.encode(["a"], kind="query"), tuned.encode(["tide"], kind="document"))
    still = maxsim(base.encode(["a"], kind="query"), base.encode(["tide"], kind="document"))
    assert abs(moved[0, 0] - still[0, 0]) > 1e-5  # it has been trained


def test_stored_corpus_vectors_do_not_change_the_results(world, finished, tmp_path):
    c = settings(world, "corpus")
    stored = finished("corpus").workdir
    values = np.load(stored / "vectors" / "base.npy", mmap_mode="r")
    offsets = np.load(stored / "vectors" / "base.npy.offsets")
    assert values.dtype == np.float16 and len(values) == offsets[-1] > 5 * len(offsets)
    forgotten = run(c, tmp_path / "forgotten", forget=True).workdir
    assert differences(stored, forgotten) == []


def test_changing_the_kind_of_vectors_keeps_only_the_data_stage(world, finished):
    c = settings(world, "documents")
    workdir = finished("documents").workdir
    c.retriever.vectors = "text"
    states = {status.stage: status for status in examine(stages(c), c, workdir)}
    assert states["data"].state == "done"
    assert states["candidates"].why == "config.retriever.vectors was tokens, is text"
