"""From scores to trained models: score, positives, mine, train."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax import hosts
from ark_jax.data.records import Question
from ark_jax.log import primary
from ark_jax.pipeline import Context
from ark_jax.stages.files import chunks_of, encode, generator, load_rows, pool, questions_of, retriever, save_rows
from ark_jax.text import prompts

SIZES = {2: "large", 3: "small"}  # whose rewritten questions mine for which training stage


def score(context: Context, folder: Path) -> dict:
    """Raw S_f, S_b, S_v of the candidates of each training question, a shard at a time."""
    from ark_jax.data import positives as alignment

    c, chunks = context.config, chunks_of(context)
    questions = sorted(questions_of(context, "train"), key=lambda q: (q.documents, q.id))
    templates = {name: prompts.load(name, c.prompts[name]) for name in prompts.TARGET}
    used = {x.id: x for q in questions for x in pool(q, chunks)}
    vectors = dict(zip(used, encode(context, "base", [x.text for x in used.values()], "document", "embed chunks"), strict=True))
    asked = encode(context, "base", [q.question for q in questions], "query", "embed questions")
    candidates = {}
    for q, vector in zip(questions, asked, strict=True):
        # The cosine is rounded to what differs between batches, so that ties and shards do not depend on them.
        some = sorted(((x, round(float(vectors[x.id] @ vector), 5)) for x in pool(q, chunks)), key=lambda p: (-p[1], p[0].id))
        candidates[q.id] = some[: c.score.candidates or None]
    shards = _shards(questions, c.score.shard)
    for i, some in enumerate(shards):
        path = folder / f"shard-{i:05d}.parquet"
        if not hosts.first(path.is_file):
            table = alignment.align(generator(context), templates, some, candidates, references=c.score.references,
                                    batch_tokens=c.generator.batch_tokens, label=f"score {i + 1}/{len(shards)}")
            if primary():
                pq.write_table(table, path.with_suffix(".new"))
                path.with_suffix(".new").rename(path)
    return hosts.first(lambda: _joined([folder / f"shard-{i:05d}.parquet" for i in range(len(shards))], folder))


def _joined(parts: list[Path], folder: Path) -> dict:
    """One table in place of the shards'."""
    table = pa.concat_tables([pq.read_table(path) for path in parts])
    pq.write_table(table, folder / "scores.parquet")
    for path in parts:
        path.unlink()
    return {"scored": len(table), "cut_passages": sum(table.column("cut").to_pylist())}


def _shards(questions: list[Question], size: int) -> list[list[Question]]:
    """Runs of questions over the same documents, joined until they are at least `size`."""
    shards: list[list[Question]] = []
    for question in questions:
        if shards and (len(shards[-1]) < size or shards[-1][-1].documents == question.documents):
            shards[-1].append(question)
        else:
            shards.append([question])
    return shards


def positives(context: Context, folder: Path) -> dict:
    """The top M chunks of each question under the weighed score."""
    from ark_jax.data import positives as alignment

    c = context.config.score
    weighing = alignment.Weighing(**{f.name: c[f.name] for f in dataclasses.fields(alignment.Weighing)})
    rows = alignment.unify(pq.read_table(context / "score" / "scores.parquet"), weighing)
    chosen = alignment.select(rows, c.positives)
    save_rows([row | {"positive": row["chunk"] in chosen[row["question"]]} for row in rows], folder / "positives.parquet")
    return {"questions": len(chosen), "positives": sum(map(len, chosen.values()))}


def positives_of(context: Context) -> dict[str, list[str]]:
    """question -> its positives, best first."""
    from ark_jax.data import positives as alignment

    return alignment.select([r for r in load_rows(context / "positives" / "positives.parquet") if r["positive"]])


def mine(context: Context, folder: Path, *, stage: int) -> dict:
    """Hard negatives for one training stage, by the model of the stage before (or the base)."""
    from ark_jax.data import negatives

    c, chunks = context.config, chunks_of(context)
    which = _before(context.config, stage) if c.mine.model == "previous" else "base"
    questions = questions_of(context, "train")
    used = {x.id: x for q in questions for x in pool(q, chunks)}
    at = {id: i for i, id in enumerate(used)}
    vectors = encode(context, which, [x.text for x in used.values()], "document", "embed chunks")
    rewritten = [r for r in load_rows(context / "rewrite" / "rewritten.parquet") if r["size"] == SIZES[stage]]
    queries = encode(context, which, [r["text"] for r in rewritten], "query", "embed rewritten questions")
    by_question: dict[str, list[int]] = {}
    for i, row in enumerate(rewritten):
        by_question.setdefault(row["question"], []).append(i)
    chosen = positives_of(context)
    pools = {q.id: [at[x.id] for x in pool(q, chunks)] for q in questions}
    found = negatives.mine({q: queries[i] for q, i in by_question.items()}, pools, vectors, list(used), chosen,
                           top=c.mine.top, keep=c.mine.negatives)
    asked = encode(context, which, [q.question for q in questions], "query", "embed questions")
    asked = dict(zip((q.id for q in questions), asked, strict=True))
    cosine = lambda q, chunk: float(asked[q] @ vectors[at[chunk]])
    save_rows([{"question": q, "chunk": chunk, "mined_by": best, "cosine": cosine(q, chunk)}
               for q, some in found.items() for chunk, best in some], folder / "negatives.parquet")
    save_rows([{"question": q, "chunk": chunk, "cosine": cosine(q, chunk)} for q, some in chosen.items() for chunk in some],
              folder / "positives.parquet")
    gap = np.mean([cosine(q, chosen[q][0]) - cosine(q, some[0][0]) for q, some in found.items() if some])
    return {"model": which, "negatives": sum(map(len, found.values())), "mean_gap_to_hardest": round(float(gap), 4)}


def _before(config, stage: int) -> str:
    """The retriever a training stage starts from."""
    earlier = [s for s in config.train.stages if s < stage]
    return f"stage{earlier[-1]}" if earlier else "base"


def train(context: Context, folder: Path, *, stage: int) -> dict:
    """One stage of the curriculum, from the stage before."""
    from ark_jax.data import curriculum
    from ark_jax.models import lora
    from ark_jax.train import loop

    c, chunks = context.config, chunks_of(context)
    questions = {q.id: q for q in questions_of(context, "train")}
    hard: dict[str, list[str]] = {}
    if stage > 1:
        for row in load_rows(context / f"mine{stage}" / "negatives.parquet"):
            hard.setdefault(row["question"], []).append(row["chunk"])
    examples = curriculum.example_rows(positives_of(context), hard, {id: "\n".join(q.documents) for id, q in questions.items()})

    def write() -> None:
        if not (folder / "examples").is_dir():
            curriculum.write(examples, folder / "examples.new")
            (folder / "examples.new").rename(folder / "examples")

    hosts.first(write)
    examples = curriculum.read(folder / "examples")
    i = list(c.train.stages).index(stage)
    plan = loop.Plan(epochs=c.train.epochs[i], learning_rate=c.train.learning_rates[i], seed=c.seed + stage,
                     use_negatives=stage > 1,
                     **{name: c.train[name] for name in ("warmup", "weight_decay", "clip", "batch", "chunks", "temperature",
                                                         "denominator", "order", "remat", "save_every", "lora_rank",
                                                         "lora_alpha", "lora_targets")})
    passages = {x.id: x.text for some in chunks.values() for x in some}
    before = _before(c, stage)
    tuned, adapter, curve = loop.train(retriever(context, before), examples, {id: q.question for id, q in questions.items()},
                                       passages, plan, folder, f"stage {stage}")
    tuned.save_pretrained(folder / "model")
    if adapter:
        # What lies in the workdir is named from there, so that the files do not depend on where it stands.
        lora.save_peft(adapter, folder / "adapter", base=c.retriever.path if before == "base" else f"{before}/model")
    hosts.first(lambda: shutil.rmtree(folder / "checkpoints"))
    context.models["retriever"] = (f"stage{stage}", tuned)
    return {"steps": len(curve), "examples": len(examples), "first_loss": round(curve[0]["loss"], 4),
            "last_loss": round(curve[-1]["loss"], 4)}
