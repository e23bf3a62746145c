"""The stages score and positives: how well chunks explain an answer, and which ones are taught."""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ark_jax.data.records import Question
from ark_jax.pipeline.parts import store_part, whole_parts
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.tables import read_table, stream_rows
from ark_jax.recipes.ark.scored_prompts import load_templates
from ark_jax.recipes.common.candidates import load_candidates
from ark_jax.recipes.common.corpus import (
    chunks_by_document,
    evidence_chunks,
    load_questions,
    stored_chunks,
)
from ark_jax.recipes.common.models import load_generator
from ark_jax.runtime import distributed
from ark_jax.runtime.distributed import is_first_process

FILE = "positives.parquet"
SHARDS = "shard-*.parquet"
LEAST_SHARE = 1e-6  # of a chunk; a share must be above 0


def score(context: Context, folder: Path) -> dict:
    """Stores the raw scores S_f, S_b, S_v of every question's candidates, shard by shard."""
    from ark_jax.recipes.ark import alignment

    config, limit = context.config, context.config.score.candidates or None
    chunks = stored_chunks(context).by_id
    questions = sorted(load_questions(context, "train"), key=lambda q: (q.documents, q.id))
    templates = load_templates(config.prompts)
    nearest = load_candidates(context)
    candidates = lambda q: [(chunks[chunk], cos) for chunk, cos in nearest.get(q.id, ())[:limit]]
    last, unscored = distributed.on_first_process(lambda: _unscored(folder, questions))
    shards = _shards([questions[i] for i in unscored], config.score.shard)
    for i, shard in enumerate(shards, 1):
        table = alignment.align(
            load_generator(context),
            templates,
            shard,
            {question.id: candidates(question) for question in shard},
            references=config.score.references,
            batch_tokens=config.generator.batch_tokens,
            label=f"score {i}/{len(shards)}",
        )
        if is_first_process():
            path = folder / f"shard-{last + i:05d}.parquet"
            store_part(path, functools.partial(pq.write_table, table))
    return distributed.on_first_process(lambda: _join_shards(folder, questions))


def _unscored(folder: Path, questions: list[Question]) -> tuple[int, list[int]]:
    """The number of the last shard that is left, and which questions all shards lack."""
    paths = whole_parts(folder, SHARDS)
    tables = [read_table(path, columns=["question"]) for path in paths]
    scored = {id for table in tables for id in table.column("question").to_pylist()}
    last = int(paths[-1].stem.removeprefix("shard-")) if paths else 0
    return last, [i for i, question in enumerate(questions) if question.id not in scored]


def _join_shards(folder: Path, questions: list[Question]) -> dict:
    """Replaces the shards' tables by one, in the order of the questions."""
    paths = sorted(folder.glob(SHARDS))
    table = pa.concat_tables([read_table(path) for path in paths])
    position = {question.id: i for i, question in enumerate(questions)}
    positions = [position[id] for id in table.column("question").to_pylist()]
    table = table.take(np.argsort(positions, kind="stable"))
    pq.write_table(table, folder / "scores.parquet")
    for path in paths:
        path.unlink()
    return {"scored": len(table), "cut_passages": sum(table.column("cut").to_pylist())}


def _shards(questions: list[Question], size: int) -> list[list[Question]]:
    """Groups of at least `size` questions; questions over the same documents stay together."""
    shards: list[list[Question]] = []
    for question in questions:
        same_documents = (
            shards and question.documents and shards[-1][-1].documents == question.documents
        )
        if shards and (len(shards[-1]) < size or same_documents):
            shards[-1].append(question)
        else:
            shards.append([question])
    return shards


def choose_positives(context: Context, folder: Path) -> dict:
    """Stores each question's positives: its top M chunks by weighted score, or its evidence."""
    from ark_jax.recipes.ark import alignment

    settings = context.config.score
    fields = [field.name for field in dataclasses.fields(alignment.Weighing)]
    weighing = alignment.Weighing(**{name: settings[name] for name in fields})
    rows = alignment.unify(read_table(context / "score" / "scores.parquet"), weighing)
    questions = load_questions(context, "train")
    marked = evidence_chunks(context, questions, chunks_by_document(context))
    evidence = {
        question: {chunk for holders in passages for chunk in holders}
        for question, passages in marked.items()
    }
    if settings.supervision == "gold":
        positives = _marked_positives(evidence)
        rows = pa.concat_tables([rows, _unscored_rows(rows, positives)])
    else:
        top = alignment.top_chunks(_ranking(rows), settings.positives)
        positives = alignment.keep_clearest(_ranking(rows), top, settings.keep)
    flags = [row["chunk"] in positives.get(row["question"], ()) for row in _ranking(rows)]
    if is_first_process():
        flagged = rows.append_column("positive", pa.array(flags, pa.bool_()))
        pq.write_table(flagged.combine_chunks(), folder / FILE)
    return _count_positives(positives, evidence)


def _ranking(rows: pa.Table) -> Iterator[dict]:
    return stream_rows(rows.select(["question", "chunk", "score"]))


def _marked_positives(evidence: Mapping[str, set[str]]) -> dict[str, list[str]]:
    positives = {question: sorted(chunks) for question, chunks in evidence.items() if chunks}
    if not positives:
        raise ValueError(
            "config.score.supervision=gold: no training question has evidence; mark it in the "
            "data, or train by alignment"
        )
    return positives


def _unscored_rows(rows: pa.Table, positives: Mapping[str, Sequence[str]]) -> pa.Table:
    """Rows for positives that were not scored, with a score below all others."""
    known = {
        (row["question"], row["chunk"])
        for row in _ranking(rows)
        if row["chunk"] in positives.get(row["question"], ())
    }
    unscored = [
        {"question": question, "chunk": chunk, "score": -np.inf}
        for question, chunks in positives.items()
        for chunk in chunks
        if (question, chunk) not in known
    ]
    return pa.Table.from_pylist(unscored, schema=rows.schema)


def _count_positives(
    positives: Mapping[str, Sequence[str]], evidence: Mapping[str, set[str]]
) -> dict:
    holding = [
        chunk in evidence[question]
        for question, chunks in positives.items()
        for chunk in chunks
        if evidence[question]
    ]
    counts = {"questions": len(positives), "positives": sum(map(len, positives.values()))}
    if holding:
        counts["share_holding_evidence"] = round(float(np.mean(holding)), 4)
    return counts


def load_positives(folder: Path) -> dict[str, list[str]]:
    """question -> its positives, best first."""
    return _best_stored(folder, positive=True)


def load_next_best(folder: Path, count: int) -> dict[str, list[str]]:
    """question -> the `count` chunks that score best after the positives."""
    return _best_stored(folder, positive=False, count=count) if count else {}


def _best_stored(folder: Path, *, positive: bool, count: int | None = None) -> dict[str, list[str]]:
    """The best of the scored chunks that are positives, or of the others."""
    from ark_jax.recipes.ark import alignment

    table = read_table(folder / FILE, ["question", "chunk", "score", "positive"])
    rows = stream_rows(table.filter(pc.equal(table["positive"], positive)))
    return alignment.top_chunks(rows, count)


def load_scores(folder: Path) -> dict[str, dict[str, float]]:
    """question -> chunk -> alignment score, of all that were scored."""
    scores: dict[str, dict[str, float]] = {}
    ids: dict[str, str] = {}  # one string for all questions that a chunk is scored for
    columns = ["question", "chunk", "score"]
    for row in stream_rows(read_table(folder / FILE, columns)):
        chunk = ids.setdefault(row["chunk"], row["chunk"])
        scores.setdefault(row["question"], {})[chunk] = row["score"]
    return scores


def load_shares(
    folder: Path, originals: Mapping[str, str], temperature: float
) -> dict[str, dict[str, float]]:
    """question -> scored chunk -> its share, see `shares`.

    Args:
        originals: chunk -> the chunk that replaces it, for copies; of these the first counts.
    """
    by_question: dict[str, dict[str, float]] = {}
    for question, scores in load_scores(folder).items():
        distinct: dict[str, float] = {}
        for chunk, value in scores.items():
            distinct.setdefault(originals.get(chunk, chunk), value)
        weights = shares(distinct.values(), temperature)
        by_question[question] = dict(zip(distinct, weights, strict=True))
    return by_question


def shares(scores: Collection[float], temperature: float) -> list[float]:
    """The softmax of alignment scores; -inf stands for a chunk that was not scored."""
    best = max(scores)
    weights = [max(math.exp((score - best) / temperature), LEAST_SHARE) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]
