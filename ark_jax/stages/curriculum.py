"""From scores to trained models: score, positives, mine, train."""

import dataclasses
import functools
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ark_jax import hosts
from ark_jax.data.records import Question
from ark_jax.log import primary
from ark_jax.pipeline import Context
from ark_jax.stages.files import (
    Texts,
    chunks_of,
    encode,
    evidence_of,
    generator,
    load_rows,
    pool,
    pooled,
    questions_of,
    retriever,
    save_rows,
)
from ark_jax.text import prompts

# Whose rewritten questions mine for which training stage. Stage 0 is no curriculum: all at once, by the base model.
SIZES = {0: ("large", "small"), 2: ("large",), 3: ("small",)}


def score(context: Context, folder: Path) -> dict:
    """Raw S_f, S_b, S_v of the candidates of each training question, a shard at a time."""
    from ark_jax.data import positives as alignment

    c, chunks = context.config, chunks_of(context)
    questions = sorted(questions_of(context, "train"), key=lambda q: (q.documents, q.id))
    templates = {name: prompts.load(name, c.prompts[name]) for name in prompts.TARGET}
    used = pooled(questions, chunks)
    vectors = dict(zip(used, encode(context, "base", Texts(chunks).of(used), "document", "embed chunks"), strict=True))
    asked = encode(context, "base", [q.question for q in questions], "query", "embed questions")
    cut, candidates = retriever(context).cuts["embed chunks"], {}
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
    told = hosts.first(lambda: _joined([folder / f"shard-{i:05d}.parquet" for i in range(len(shards))], folder))
    return told | {"cut_by_the_retriever": cut}


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
    """The top M chunks of each question under the weighed score, or those of its evidence; and how many hold evidence."""
    from ark_jax.data import positives as alignment

    c = context.config.score
    weighing = alignment.Weighing(**{f.name: c[f.name] for f in dataclasses.fields(alignment.Weighing)})
    rows = alignment.unify(pq.read_table(context / "score" / "scores.parquet"), weighing)
    marked = evidence_of(context, questions_of(context, "train"), chunks_of(context))
    gold = {question: {x for holders in passages for x in holders} for question, passages in marked.items()}
    if c.supervision == "gold":
        chosen = {question: sorted(some) for question, some in gold.items() if some}
        if not chosen:
            raise ValueError("config.score.supervision=gold: no training question has evidence; mark it in the data, or train by "
                             "alignment")
        known = {(row["question"], row["chunk"]) for row in rows}
        rows += [dict.fromkeys(rows[0]) | {"question": question, "chunk": chunk, "score": -np.inf}
                 for question, some in chosen.items() for chunk in some if (question, chunk) not in known]
    else:
        chosen = alignment.decided(rows, alignment.select(rows, c.positives), c.keep)
    save_rows([row | {"positive": row["chunk"] in chosen.get(row["question"], ())} for row in rows], folder / "positives.parquet")
    right = [chunk in gold[question] for question, some in chosen.items() for chunk in some if gold[question]]
    return {"questions": len(chosen), "positives": sum(map(len, chosen.values()))} | (
        {"share_holding_evidence": round(float(np.mean(right)), 4)} if right else {})


def positives_of(context: Context) -> dict[str, list[str]]:
    """question -> its positives, best first."""
    from ark_jax.data import positives as alignment

    return alignment.select([r for r in load_rows(context / "positives" / "positives.parquet") if r["positive"]])


def _spared(context: Context, most: int) -> dict[str, list[str]]:
    """question -> as many of its best chunks as `most`, after the positives."""
    from ark_jax.data import positives as alignment

    rows = [r for r in load_rows(context / "positives" / "positives.parquet") if not r["positive"]]
    return alignment.select(rows, most) if most else {}


def mine(context: Context, folder: Path, *, stage: int) -> dict:
    """Hard negatives for one training stage, by the model of the stage before (or the base), and how hard they are.

    The difficulty of a negative is the gap between its cosine to the question and that of the most similar positive.
    """
    from ark_jax.data import negatives

    c, chunks = context.config, chunks_of(context)
    which = _before(context.config, stage) if c.mine.model == "previous" else "base"
    chosen = positives_of(context)
    questions = [q for q in questions_of(context, "train") if q.id in chosen]
    ids, texts = pooled(questions, chunks), Texts(chunks)
    at = {id: i for i, id in enumerate(ids)}
    vectors = encode(context, which, texts.of(ids), "document", "embed chunks")
    asked = encode(context, which, [q.question for q in questions], "query", "embed questions")
    pools = {q.id: [at[x.id] for x in pool(q, chunks)] for q in questions}
    if c.mine.by in ("rewritten", "question"):
        queries = _rewritten(context, which, stage, set(chosen)) if c.mine.by == "rewritten" \
            else {q.id: vector[None] for q, vector in zip(questions, asked, strict=True)}
        found = negatives.mine(queries, pools, vectors, ids, top=c.mine.top)
    else:
        lists = negatives.unlearned(c.mine.by, {q.id: q.question for q in questions}, pools, texts.of(ids), top=c.mine.top)
        found = {q.id: [(ids[i], float(vector @ vectors[i])) for i in lists[q.id]]
                 for q, vector in zip(questions, asked, strict=True)}
    cosines = {q.id: {x: float(vector @ vectors[at[x]]) for x in (*chosen[q.id], *(x for x, _ in found[q.id]))}
               for q, vector in zip(questions, asked, strict=True)}
    return {"model": which} | hosts.first(lambda: _choose(context, folder, questions, chosen, found, cosines, texts))


def _choose(context: Context, folder: Path, questions: list[Question], chosen: dict[str, list[str]],
            found: dict[str, list[tuple[str, float]]], cosines: dict[str, dict[str, float]], texts: Texts) -> dict:
    """Writes the negatives among the chunks that were found, and the positives, each with its cosine to the question."""
    from ark_jax.data import negatives

    c = context.config
    known = sorted({x for some in cosines.values() for x in some})
    originals, spared = negatives.originals({x: texts[x] for x in known}), _spared(context, c.mine.spare)
    rows, marked, gaps, dropped, without, holding = [], [], [], Counter(), 0, 0
    for q in questions:
        cosine = cosines[q.id]
        holds = lambda chunk, q=q: negatives.holds(texts[chunk], q.answers)
        kept, taken = negatives.choose(found[q.id], chosen[q.id], cosine=cosine, originals=originals, holding=holds,
                                       margin=c.mine.margin, spared=spared.get(q.id, ()),
                                       drop_answers=c.mine.drop_answers, keep=c.mine.negatives)
        rows += [{"question": q.id, "chunk": x, "mined_by": score, "cosine": cosine[x]} for x, score in kept]
        marked += [{"question": q.id, "chunk": x, "cosine": cosine[x]} for x in chosen[q.id]]
        nearest = max(cosine[x] for x in chosen[q.id])
        gaps.append([nearest - cosine[x] for x, _ in kept])
        dropped.update(taken)
        without += not kept
        holding += sum(holds(x) for x, _ in kept)
    save_rows(rows, folder / "negatives.parquet")
    save_rows(marked, folder / "positives.parquet")
    return {"negatives": len(rows), "questions_without": without, "holding_the_answer": holding,
            "dropped": dict(dropped), **_difficulty([some for some in gaps if some])}


def _rewritten(context: Context, which: str, stage: int, wanted: set[str]) -> dict[str, np.ndarray]:
    """question -> vectors `[r e]` of its rewritten versions for a training stage."""
    rows = [r for r in load_rows(context / "rewrite" / "rewritten.parquet")
            if r["size"] in SIZES[stage] and r["question"] in wanted]
    vectors = encode(context, which, [r["text"] for r in rows], "query", "embed rewritten questions")
    of: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        of.setdefault(row["question"], []).append(i)
    return {question: vectors[some] for question, some in of.items()}


def _difficulty(gaps: list[list[float]]) -> dict:
    """Of questions that have negatives: the gap from the most similar positive to the hardest one, and how many of all
    negatives are more similar than it."""
    if not gaps:
        return {}
    hardest = [min(some) for some in gaps]
    quantiles = {f"p{p}": round(float(np.percentile(hardest, p)), 4) for p in (10, 50, 90)}
    return {"mean_gap_to_hardest": round(float(np.mean(hardest)), 4), "gap_to_hardest": quantiles,
            "share_above_the_positive": round(float(np.mean([gap < 0 for some in gaps for gap in some])), 4)}


def _before(config, stage: int) -> str:
    """The retriever a training stage starts from."""
    i = list(config.train.stages).index(stage)
    return f"stage{config.train.stages[i - 1]}" if i else "base"


def epochs(train, stage: int) -> int:
    """Of one stage, under `config.train`; stage 0 takes as many as all."""
    return train.epochs[stage - 1] if stage else sum(train.epochs)


def needed(stage: int) -> tuple[str, ...]:
    """The stages whose outputs say what one training stage is trained on."""
    return ("data", "positives", *([f"mine{stage}"] if stage in SIZES else []))


def examples_of(context: Context, stage: int) -> tuple[list, dict[str, str], Texts]:
    """What one training stage is trained on: its `Example`s, and the texts of questions and of chunks by their ids."""
    from ark_jax.data import curriculum, negatives

    questions = {q.id: q for q in questions_of(context, "train")}
    hard: dict[str, list[str]] = {}
    if stage in SIZES:
        for row in load_rows(context / f"mine{stage}" / "negatives.parquet"):
            hard.setdefault(row["question"], []).append(row["chunk"])
    passages = Texts(chunks_of(context))
    copies = hosts.first(lambda: negatives.originals(passages)) if context.config.train.merge_copies else {}
    examples = curriculum.example_rows(
        positives_of(context), hard, {id: "\n".join(q.documents) for id, q in questions.items()}, copies)
    return examples, {id: q.question for id, q in questions.items()}, passages


def train(context: Context, folder: Path, *, stage: int) -> dict:
    """One stage of the curriculum, from the stage before; stage 0 takes as many epochs as all."""
    from ark_jax.data import curriculum
    from ark_jax.models import lora
    from ark_jax.train import loop

    c = context.config
    examples, questions, passages = examples_of(context, stage)

    def write() -> None:
        if not (folder / "examples").is_dir():
            curriculum.write(examples, folder / "examples.new")
            (folder / "examples.new").rename(folder / "examples")

    hosts.first(write)
    examples = curriculum.read(folder / "examples")
    plan = loop.Plan(epochs=epochs(c.train, stage), learning_rate=c.train.learning_rates[max(stage - 1, 0)],
                     seed=c.seed + stage, use_negatives=stage in SIZES,
                     **{name: c.train[name] for name in ("warmup", "weight_decay", "clip", "batch", "chunks", "temperature",
                                                         "matryoshka", "denominator", "order", "remat", "save_every",
                                                         "lora_rank", "lora_alpha", "lora_targets")})
    before = _before(c, stage)
    tuned, adapter, curve = loop.train(retriever(context, before), examples, questions, passages, plan, folder,
                                       f"stage {stage}", tell=functools.partial(context.metrics.step, f"stage{stage}"),
                                       log=functools.partial(context.metrics.write, f"stage{stage}"))
    tuned.save_pretrained(folder / "model")
    if adapter:
        # What lies in the workdir is named from there, so that the files do not depend on where it stands.
        lora.save_peft(adapter, folder / "adapter", base=c.retriever.path if before == "base" else f"{before}/model")
    # What was saved has the types of the base, perhaps 16 bits: that is what is measured and gone on from, resumed or not.
    context.models.pop("retriever", None)
    return {"steps": len(curve), "examples": len(examples), "first_loss": round(curve[0]["loss"], 4),
            "last_loss": round(curve[-1]["loss"], 4)}


def merge(context: Context, folder: Path) -> dict:
    """Base and last stage, weight by weight: what tuning gains on its own data, with less of what it costs elsewhere."""
    import jax

    share, last = context.config.train.merge, f"stage{context.config.train.stages[-1]}"
    base = retriever(context, "base")
    tuned = retriever(context, last)
    model = jax.tree.map(lambda a, b: a + share * (b - a), base.model, tuned.model)
    tuned = dataclasses.replace(tuned, model=model)
    tuned.save_pretrained(folder / "model")
    context.models.pop("retriever", None)
    return {"merged": last, "share": share}
