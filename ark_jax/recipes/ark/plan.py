"""What an ARK run has still to ask, compute and store, for `ark-jax plan`.

What a model has yet to choose (candidates, positives, negatives) is as if drawn at random.
"""

import dataclasses
import math
import random
from collections.abc import Sequence

from ark_jax.data.records import Chunk
from ark_jax.estimate.work import Texts, Work, asked
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.curriculum import (
    MINING_SIZES,
    RERANKER,
    builds_graph,
    epochs,
    is_distilling,
    mine_name,
    mines_by_graph,
    stage_name,
    systems,
)
from ark_jax.recipes.ark.extract import extracted_chunks, extraction_calls
from ark_jax.recipes.ark.join_passages import join_by_community
from ark_jax.recipes.ark.rewrite import rewriting_calls
from ark_jax.recipes.common import choose_fusion, filter_questions, plan, retrieve
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.corpus import (
    candidate_chunks,
    load_questions,
    searches_corpus,
    stored_chunks,
)
from ark_jax.recipes.common.hyde import passage_calls
from ark_jax.recipes.common.models import WARM_READER, keeps_tokens
from ark_jax.recipes.common.plan import distinct
from ark_jax.recipes.common.systems import DEPTH, HYDE
from ark_jax.recipes.common.write_questions import materials_to_ask, question_calls
from ark_jax.recipes.common.written_from import is_writing

# Of the packaged recordings, in tokens: written for one of a passage; a line about an entity, a
# rewritten question, a written question with answer and evidence; entities for one of a passage.
EXTRACTED, LINE, VERSION, PAIR, ENTITIES = 4.7, 27, 31, 77, 0.074
HYDE_TOKENS = 120  # of a passage that HyDE searches for
# How far a community goes from its least to its most entities: .22 (large) and .36 (small) in the
# demo.
COMMUNITY_SHARE = 0.25
SCORE_BYTES = 32  # of scores.parquet for a pair


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages, what is stored, and notes."""
    join = join_by_community if "graph" in done else _neighbours
    plan.foresee_questions(context, done, join)
    config, chunks = context.config, stored_chunks(context)
    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    whole = searches_corpus(context)
    pools = [len(candidate_chunks(q, chunks.by_document)) for q in train] if not whole else []
    pool = sum(pools) / max(len(pools), 1) or len(chunks)
    documents = len({question.documents for question in train})
    searched, _ = retrieve.chunks_in_scope("corpus" if whole else "document", train, chunks)
    passage = plan.measure_passages(context, config.retriever.path, searched)
    question = plan.measure_questions(config.retriever.path, train)
    candidates = min(config.data.candidates, pool) if whole else pool
    scored = min(config.score.candidates or candidates, candidates)
    per_text = passage.mean / 2 if keeps_tokens(config) else 1  # 16 bits for each token
    embed = lambda stage, texts, stored=0.0: Work(
        stage, "retriever", "embedding", texts.count, texts.mean, stored=stored
    )
    vectors = passage.count * per_text * whole

    works = [embed("candidates", passage, vectors), embed("candidates", question)]
    works += _calls(context, done, join, passage)
    if builds_graph(config):
        entities = Texts(ENTITIES * passage.count * passage.mean, LINE, LINE)
        works.append(embed("graph", entities, entities.count))
    if is_writing(config):
        works += [embed("questions", passage), embed("questions", question.of(len(train)))]
        if config.questions.margin > filter_questions.NO_MARGIN:
            materials = len(train) / config.questions.per_passage
            works += _likelihoods(context, "questions", train, materials, 2 * len(train))
    references = sum(len(q.answers[: config.score.references or None]) for q in train)
    prefixes = documents * distinct(pool, scored, len(train) / documents)
    works += _likelihoods(context, "score", train, prefixes, 2 * scored * references)
    # Stages of training.
    kept = len(train) if config.score.supervision == "gold" else config.score.keep * len(train)
    kept = len(train) if is_distilling(config) else math.ceil(kept)
    batch = min(config.train.batch, kept)
    alike = len(train) / documents if config.train.order == "document" and not whole else 1
    groups = 1 if whole else max(batch / alike, 1)
    for stage in config.train.stages:
        positives = min(scored if is_distilling(config) else config.score.positives, scored)
        negatives = 0
        if stage in MINING_SIZES:
            sizes = MINING_SIZES[stage] if mines_by_graph(config) else ()
            rewritten = Texts(len(sizes) * config.graph.rewrites * kept, VERSION, VERSION)
            mined = [passage, question, rewritten]
            works += [embed(mine_name(stage), texts) for texts in mined]
            most = min(config.mine.negatives, config.mine.top * config.graph.rewrites)
            negatives = min(most, pool - positives)
        in_step = groups * distinct(pool, positives + negatives, batch / groups)
        steps = math.ceil(epochs(config.train, stage) * kept / config.train.batch)
        step = (question.of(batch), passage.of(in_step))
        works.append(Work(stage_name(stage), "retriever", "training", steps, step=step))
    pair = Texts(0, passage.mean + question.mean, passage.longest + question.longest)
    asks = plan.measure_questions(config.retriever.path, held_out)
    found = len(retrieve.searched_chunks(context, held_out, chunks)[0])
    if config.train.kind == "cross":
        steps = math.ceil(config.reranker.epochs * kept / config.train.batch)
        texts = pair.of(batch * min(config.reranker.candidates, pool))
        works += [
            Work(RERANKER, "reranker", "training", steps, step=(texts,)),
            Work("evaluate", "reranker", "embedding", asks.count * min(DEPTH, found), pair.mean),
        ]
    # Evaluation.
    if config.evaluate.fusion == "chosen":
        works += [embed(choose_fusion.STAGE, passage), embed(choose_fusion.STAGE, question)]
    works += [embed("baselines", passage.of(0 if whole else found)), embed("baselines", asks)]
    works += [
        embed("evaluate", x, vectors) for _ in systems(config).tuned for x in (passage.of(found),)
    ]
    answers, notes = plan.answering(context, systems(config))
    works += answers
    if config.reader.warm:
        reading = next(x for x in answers if x.model == "reader")
        text = Texts(min(config.reader.batch, len(train)), reading.read, reading.read)
        steps, written = config.reader.steps, text.count * 8
        works.append(Work(WARM_READER, "reader", "training", steps, written=written, step=(text,)))
    left_out = [
        *(["embedding for hyde"] if config.search.expand == HYDE else []),
        *(["embedding with evaluate.retrievers"] if config.evaluate.retrievers else []),
        *(["reading whole documents (full)"] if "full" in config.evaluate.baselines else []),
        *(["reranking with evaluate.rerank"] if config.evaluate.rerank else []),
    ]
    return Forecast(
        inputs=plan.count_inputs(context),
        work=tuple(works),
        disk={"scores": SCORE_BYTES * round(scored * references)} if "score" not in done else {},
        notes=(
            *notes,
            *([] if builds_graph(config) else ["no stage reads a graph, so none is built"]),
            *([f"left out: {' and '.join(left_out)}"] if left_out else []),
            f"{len(held_out):,} held-out questions: {what_can_be_told(len(held_out))}",
        ),
    )


def _likelihoods(
    context: Context, stage: str, train: Sequence, prefixes: float, pairs: float
) -> list[Work]:
    """Likelihoods of answers and questions; a passage that pairs share is computed once."""
    folder = context.config.generator.path
    passage = plan.measure_passages(context, folder).mean
    question, answer = (
        measured(folder, train).mean for measured in (plan.measure_questions, plan.measure_answers)
    )
    target = (question + answer) / 2
    return [
        Work(stage, "generator", "likelihoods", prefixes, passage),
        Work(stage, "generator", "likelihoods", pairs, 8 + question + answer, target, passage),
    ]


def _calls(context: Context, done: set[str], join, passage: Texts) -> list[Work]:
    """The calls of extraction, gleaning, writing and rewriting, and of HyDE."""
    config, works = context.config, []
    folder = config.llm.path if config.llm.backend == "local" else ""
    folder = folder or config.generator.path

    def add(stage: str, calls: Sequence, reply: float, more: float = 0, role: str = "llm") -> Work:
        settings = llm_settings(config, role)
        works.append(asked(context, (stage, "llm"), settings, calls, folder, reply, more))
        return works[-1]

    if builds_graph(config) and not config.graph.openie:
        calls = extraction_calls(context, _chunks_to_extract(context, done))
        length = plan.measure_passages(context, folder).mean
        once, times = add("extract", calls, EXTRACTED * length), config.graph.gleanings
        if times:
            # Each further pass is asked in one conversation with all that came before.
            read = once.read + (times + 1) / 2 * once.written
            fields = {"items": times * once.items, "total": times * once.total, "read": read}
            works.append(dataclasses.replace(once, label="gleaning", **fields))
    if is_writing(config):
        calls = question_calls(context, materials_to_ask(context, join))
        add("questions", calls, PAIR * config.questions.per_passage, role="questions")
    if mines_by_graph(config):
        ready = {"graph", "communities"} <= done
        sizes = [config.graph[size] for size in ("large", "small")]
        nodes = [least + COMMUNITY_SHARE * (most - least) for least, most in sizes]
        calls = rewriting_calls(context, None if ready else _empty_communities(context))
        more = 0 if ready else LINE * sum(nodes) / len(nodes)
        add("rewrite", calls, VERSION * config.graph.rewrites, more)
    if config.search.expand == HYDE:
        calls = passage_calls(context, load_questions(context, "held_out"))
        add("baselines", calls, HYDE_TOKENS)
    return works


def _chunks_to_extract(context: Context, done: set[str]) -> set[str]:
    """The chunks that extraction will read; before the candidates exist, as many at random."""
    if "candidates" in done or is_writing(context.config):
        return extracted_chunks(context)
    chunks, train = stored_chunks(context), load_questions(context, "train")
    if not searches_corpus(context):
        return {chunk.id for q in train for chunk in candidate_chunks(q, chunks.by_document)}
    count = min(context.config.data.candidates, len(chunks))
    ids = list(chunks.ids)
    return {id for q in train for id in random.Random(q.id).sample(ids, count)}


def _empty_communities(context: Context) -> list[dict]:
    """The rows that the communities stage will store, without entities."""
    return [
        {"question": question.id, "size": size, "nodes": []}
        for question in load_questions(context, "train")
        for size in ("large", "small")
    ]


def _neighbours(context: Context, passages: Sequence[Chunk], count: int) -> list[tuple]:
    """Pairs of drawn passages, before a graph can tell which belong together."""
    return list(zip(passages, [*passages[1:], *passages[:1]], strict=True))[:count]
