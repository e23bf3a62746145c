"""What an ARK run has still to ask, compute and store, for `ark-jax plan`.

What a model has yet to choose (candidates, positives, negatives) counts as drawn at random.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from ark_jax.estimate.work import Texts, Work, asked, measure
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import curriculum
from ark_jax.recipes.ark.extract import extracted_chunks, extraction_calls, rewriting_calls
from ark_jax.recipes.ark.graph import join_by_community
from ark_jax.recipes.core.ask import llm_settings
from ark_jax.recipes.core.models import WARM_READER, keeps_tokens
from ark_jax.recipes.documents import (
    baselines,
    choice,
    choose_fusion,
    filter_questions,
    plan,
    retrieve,
)
from ark_jax.recipes.documents.corpus import load_questions, searches_corpus, stored_chunks
from ark_jax.recipes.documents.retrieve import DEPTH, HYDE
from ark_jax.recipes.documents.written_questions import is_writing, materials_to_ask, question_calls

# Of the packaged recordings: what is written for a passage, in its own length, and entities for a
# token of it. Then characters: of a line about an entity, of a rewritten question, of a written
# question with answer and evidence, and of a passage that HyDE searches for. Prose of this length
# has as many tokens as these.
EXTRACTED, ENTITIES = 4.7, 0.074
LINE, VERSION, PAIR, PASSAGE = 125, 133, 330, 520
CHARACTERS = 4.2  # of a token
# How far a community goes from its least to its most entities; in the demo .22 to .36.
COMMUNITY_SHARE = 0.25
SCORE_BYTES = 32  # of scores.parquet for a pair


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages, what is stored, and notes."""
    # Before a graph exists, other passages stand for those it joins.
    pairs = lambda passages: list(itertools.pairwise([*passages, passages[0]]))
    join = join_by_community if "graph" in done else lambda _, x, count: pairs(x)[:count]
    plan.foresee_questions(context, done, join)
    config, chunks = context.config, stored_chunks(context)
    train, held_out = (load_questions(context, part) for part in ("train", "held_out"))
    whole, documents = searches_corpus(context), len({x.documents for x in train})
    searched, places = retrieve.chunks_in_scope("corpus" if whole else "document", train, chunks)
    found = len(retrieve.searched_chunks(context, held_out, chunks)[0])
    pool = sum(map(len, places)) / len(places)
    candidates = min(config.data.candidates, pool) if whole else pool
    scored = min(config.score.candidates or candidates, candidates)
    passage = measure(config.retriever.path, searched, plan.PASSAGE)
    question, asks = (measure(config.retriever.path, x, plan.QUESTION) for x in (train, held_out))
    # A vector for each token has 16 bits a number.
    stored = whole * passage.count * (passage.mean / 2 if keeps_tokens(config) else 1)

    def embed(stage: str, *kinds: Texts, stored: float = 0) -> list[Work]:
        work = [Work(stage, "retriever", "embedding", x.count, x.mean) for x in kinds]
        return [dataclasses.replace(work[0], stored=stored), *work[1:]]

    works = embed("baselines", passage.of(found), asks, stored=stored)
    works += embed("candidates", passage.of(0 if whole else passage.count), question)
    if curriculum.builds_graph(config):
        line = LINE / CHARACTERS
        entities = ENTITIES * passage.count * passage.mean
        works += embed("graph", Texts(entities, line, line), stored=entities)
    if is_writing(config):
        works += embed("questions", passage, question)
        if config.questions.margin > filter_questions.NO_MARGIN:
            asked_of = len(train) / config.questions.per_passage
            works += _likelihoods(context, "questions", asked_of, 2 * len(train))
    scores = scored * sum(len(q.answers[: config.score.references or None]) for q in train)
    prefixes = documents * plan.distinct(pool, scored, len(train) / documents)
    if scores:  # of a question without answers there is none
        works += _likelihoods(context, "score", prefixes, 2 * scores)
    is_kept = config.score.supervision == "gold" or curriculum.is_distilling(config)
    share = (1 - config.score.development) * (1 if is_kept else config.score.keep)
    kept = math.ceil(len(train) * share)
    batch = min(config.train.batch, kept)
    # Sets of documents that a step reads.
    groups = plan.distinct(documents, 1, batch)
    if whole or config.train.order == "document":
        groups = 1 if whole else max(batch * documents / len(train), 1)
    positives = scored if curriculum.is_distilling(config) else config.score.positives
    for stage in config.train.stages:
        name, learned = curriculum.stage_name(stage), positives
        if stage in curriculum.MINING_SIZES:
            sizes = len(curriculum.MINING_SIZES[stage]) * curriculum.mines_by_graph(config)
            rewritten = question.of(sizes * config.graph.rewrites * kept)
            works += embed(curriculum.mine_name(stage), passage, question, rewritten)
            learned += min(config.mine.negatives, config.mine.top * config.graph.rewrites)
        steps = math.ceil(curriculum.epochs(config.train, stage) * kept / config.train.batch)
        in_step = groups * plan.distinct(pool, learned, batch / groups)
        step = (question.of(batch), passage.of(in_step))
        works.append(Work(name, "retriever", "training", steps, step=step))
    if config.train.kind == "cross":
        pair = Texts(0, passage.mean + question.mean, passage.longest + question.longest)
        steps = math.ceil(config.reranker.epochs * kept / config.train.batch)
        step = (pair.of(batch * min(config.reranker.candidates, pool)),)
        works.append(Work(curriculum.RERANKER, "reranker", "training", steps, step=step))
        reranked = asks.count * min(DEPTH, found)
        works.append(Work("evaluate", "reranker", "embedding", reranked, pair.mean))
    if config.evaluate.fusion == "chosen":
        works += embed(choose_fusion.STAGE, passage, question)
    for _ in curriculum.systems(config).tuned:
        works += embed("evaluate", passage.of(found), asks, stored=stored)
    for _ in ("base", *curriculum.systems(config).tuned) if kept < len(train) else ():
        works += embed(choice.STAGE, passage.of(0 if whole else passage.count), question)
    answers, notes = plan.answering(context, curriculum.systems(config))
    if config.reader.warm:
        reading = plan.reader_tokens(context, train)
        text = Texts(min(config.reader.batch, len(train)), reading, reading)
        amounts = {"written": text.count * PAIR / CHARACTERS, "step": (text,)}
        works.append(Work(WARM_READER, "reader", "training", config.reader.steps, **amounts))
    if is_writing(config) and "questions" not in done:
        notes.append("all is at most this, as if no written question were dropped")
    if not curriculum.builds_graph(config):
        notes.append("no stage reads a graph, so none is built")
    notes += baselines.notes_for_plan(context, done)
    notes.append(f"{len(held_out):,} held-out questions: {what_can_be_told(len(held_out))}")
    disk = {"scores": SCORE_BYTES * round(scores)} if "score" not in done else {}
    calls = _calls(context, done, join)
    return Forecast(plan.count_inputs(context), (*calls, *works, *answers), disk, tuple(notes))


def _likelihoods(context: Context, stage: str, prefixes: float, pairs: float) -> list[Work]:
    """Likelihoods of answers and questions; a passage that pairs share is computed once."""
    folder, train = context.config.generator.path, load_questions(context, "train")
    passage = measure(folder, stored_chunks(context), plan.PASSAGE).mean
    ends = measure(folder, train, plan.QUESTION).mean + plan.measure_answers(train, folder).mean
    return [
        Work(stage, "generator", "likelihoods", prefixes, passage),
        Work(stage, "generator", "likelihoods", pairs, 8 + ends, ends / 2, passage),
    ]


def _calls(context: Context, done: set[str], join) -> list[Work]:
    """The calls of extraction, gleaning, writing and rewriting, and of HyDE."""
    config, works, train = context.config, [], load_questions(context, "train")
    own = config.llm.path if config.llm.backend == "local" else ""
    folder = own or config.generator.path

    def ask(stage: str, calls: Sequence, *characters: float) -> None:
        settings = llm_settings(config, "questions" if stage == "questions" else "llm")
        works.append(asked(context, stage, settings, calls, folder, *characters))

    if curriculum.builds_graph(config) and not config.graph.openie:
        calls = extraction_calls(context, _chunks_to_extract(context, done, train))
        length = measure(folder, stored_chunks(context), plan.PASSAGE).characters
        ask("extract", calls, EXTRACTED * length)
        once, times = works[-1], config.graph.gleanings
        # Each further pass is asked in one conversation with all that came before.
        read = once.read + (times + 1) / 2 * once.written
        fields = {"items": times * once.items, "total": times * once.total, "read": read}
        works += [dataclasses.replace(once, label="gleaning", **fields)] * (times > 0)
    if is_writing(config):
        calls = question_calls(context, materials_to_ask(context, join))
        ask("questions", calls, PAIR * config.questions.per_passage)
    if curriculum.mines_by_graph(config):
        ready = {"graph", "communities"} <= done
        keys = [(question.id, size) for question in train for size in ("large", "small")]
        empty = [{"question": id, "size": size, "nodes": []} for id, size in keys]
        calls = rewriting_calls(context, None if ready else empty)
        sizes = config.graph.large, config.graph.small
        nodes = sum(least + COMMUNITY_SHARE * (most - least) for least, most in sizes) / 2
        ask("rewrite", calls, VERSION * config.graph.rewrites, LINE * nodes * (not ready))
    if config.search.expand == HYDE:
        calls = retrieve.passage_calls(context, load_questions(context, "held_out"))
        ask("baselines", calls, PASSAGE)
    return works


def _chunks_to_extract(context: Context, done: set[str], train: Sequence) -> set[str]:
    """The chunks that extraction will read; before the candidates exist, as many at random."""
    if "candidates" in done or is_writing(context.config):
        return extracted_chunks(context)
    whole, chunks = searches_corpus(context), stored_chunks(context)
    searched, _ = retrieve.chunks_in_scope("corpus" if whole else "document", train, chunks)
    ids = [chunk.id for chunk in searched]
    count = min(context.config.data.candidates, len(ids)) if whole else len(ids)
    return {id for q in train for id in random.Random(q.id).sample(ids, count)}
