"""What an ARK run has still to ask, compute and store, for `ark-jax plan`.

Candidates, positives and negatives that a model has not chosen yet count as random draws.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from ark_jax.data.records import Question
from ark_jax.estimate.work import Texts, Work, measure, pending_calls
from ark_jax.evaluate.significance import detectable_difference
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import curriculum, extract
from ark_jax.recipes.ark.alignment import needs_scores
from ark_jax.recipes.ark.graph import SEEDS, in_round, join_by_community
from ark_jax.recipes.core.ask import llm_settings, section_of
from ark_jax.recipes.core.models import WARM_READER, keeps_tokens
from ark_jax.recipes.documents import choice, corpus, evaluate, filter_questions, plan, retrieve
from ark_jax.recipes.documents.retrieve import DEPTH, HYDE
from ark_jax.recipes.documents.written_questions import (
    is_writing,
    materials_to_ask,
    question_calls,
    writes_by_rules,
)

# Means of the packaged recordings. The length of a reply with records by that of its passage; the
# entities by tokens of a passage. Then characters: of a line about an entity, of a rewritten
# question, of a written question with answer and evidence, and of a passage of HyDE.
EXTRACTED, ENTITIES = 4.7, 0.074
LINE, VERSION, PAIR, PASSAGE = 125, 133, 330, 520
NAMES = 30  # characters of the list of entities in an answer, a guess
CHARACTERS = 4.2  # in a token
# The size of a community between its smallest, 0, and its largest, 1; in the demo .22 to .36.
COMMUNITY_SHARE = 0.25
SCORE_BYTES = 32  # of scores.parquet for a pair


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages, what is stored, and notes."""
    # Before a graph exists, consecutive passages stand in for those that it joins.
    join = join_by_community if "graph" in done else _join_neighbours
    plan.store_placeholder_questions(context, done, join)
    config, sizes = context.config, _Sizes.from_workdir(context)
    pairs, scoring = _score(context, sizes)
    works = [
        *_prepare(context, sizes),
        *scoring,
        *_train(config, sizes),
        *_rerank(config, sizes),
        *_retrieve(config, sizes),
    ]
    answers, notes = plan.answer_works(context, curriculum.systems(config))
    if config.reader.warm:
        answers = [_train_reader(context, sizes), *answers]
    if is_writing(config) and "questions" not in done:
        notes.append("all is at most this, as if no written question were dropped")
    if not curriculum.builds_graph(config):
        notes.append("no stage reads a graph, so none is built")
    by_rules = config.llm.backend == "none" and not config.rewriter.backend
    if by_rules and curriculum.asks_writer(config):
        notes.append("rules extract, rewrite and write; no language model is asked")
    if config.train.rounds > 1 and sizes.whole:
        notes.append("no likelihood is counted of candidates that a later round finds anew")
    notes += evaluate.notes_for_plan(context, done)
    tested = len(sizes.held_out)
    notes.append(f"{tested:,} held-out questions: {detectable_difference(tested)}")
    disk = {"scores": SCORE_BYTES * round(pairs)} if "score" not in done else {}
    calls = _calls(context, done, join)
    return Forecast(plan.count_inputs(context), (*calls, *works, *answers), disk, tuple(notes))


def _join_neighbours(context: Context, passages: Sequence, count: int) -> list[tuple]:
    """Pairs of consecutive passages, in place of those that a graph joins."""
    return list(itertools.pairwise([*passages, passages[0]]))[:count]


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """How much there is to embed, to score and to train on.

    Attributes:
        whole: whether questions search the whole corpus.
        documents: different sets of documents that training questions name.
        found: chunks that held-out questions search.
        pool: chunks that a training question searches, in the mean.
        scored: of these, how many are scored.
        kept: training questions that are learned from.
        passage, learned, question, asked: texts of the searched chunks, of those that are trained
            on, of the training questions and of the held-out ones.
        stored: vectors of passages that are kept on disk.
    """

    train: list[Question]
    held_out: list[Question]
    whole: bool
    documents: int
    found: int
    pool: float
    scored: float
    kept: int
    passage: Texts
    learned: Texts
    question: Texts
    asked: Texts
    stored: float

    @classmethod
    def from_workdir(cls, context: Context) -> "_Sizes":
        config, chunks = context.config, corpus.stored_chunks(context)
        train, held_out = (corpus.load_questions(context, part) for part in ("train", "held_out"))
        whole = corpus.searches_corpus(context)
        scope = "corpus" if whole else "document"
        searched, _ = retrieve.chunks_in_scope(scope, train, chunks)
        learned, places = retrieve.chunks_in_scope(scope, train, corpus.training_chunks(context))
        pool = sum(map(len, places)) / len(places)
        candidates = min(config.data.candidates, pool) if whole else pool
        keeps_all = config.score.supervision == "gold" or curriculum.is_distilling(config)
        share = (1 - config.score.development) * (1 if keeps_all else config.score.keep)
        passage = measure(config.retriever.path, searched, plan.PASSAGE)
        # A vector for each token has 16 bits a number.
        vectors = passage.count * (passage.mean / 2 if keeps_tokens(config) else 1)
        return cls(
            train=train,
            held_out=held_out,
            whole=whole,
            documents=len({question.documents for question in train}),
            found=len(retrieve.searched_chunks(context, held_out, chunks)[0]),
            pool=pool,
            scored=needs_scores(config) * min(config.score.candidates or candidates, candidates),
            kept=math.ceil(len(train) * share),
            passage=passage,
            learned=measure(config.retriever.path, learned, plan.PASSAGE),
            question=measure(config.retriever.path, train, plan.QUESTION),
            asked=measure(config.retriever.path, held_out, plan.QUESTION),
            stored=whole * vectors,
        )

    def anew(self, texts: Texts) -> Texts:
        """The passages to embed where another stage has stored those of the whole corpus."""
        is_stored = self.whole and texts == self.passage  # sentences that are trained on are not
        return texts.with_count(0 if is_stored else texts.count)


def _embed(stage: str, *kinds: Texts, stored: float = 0) -> list[Work]:
    """A work for each kind of texts; the first one stores `stored` vectors."""
    works = [Work(stage, "retriever", "embedding", texts.count, texts.mean) for texts in kinds]
    return [dataclasses.replace(works[0], stored=stored), *works[1:]]


def _prepare(context: Context, sizes: _Sizes) -> list[Work]:
    """The vectors of baselines, candidates, graph and written questions; their likelihoods."""
    config = context.config
    found = sizes.passage.with_count(sizes.found)
    works = _embed("baselines", found, sizes.asked, stored=sizes.stored)
    works += _embed("candidates", sizes.anew(sizes.learned), sizes.question)
    if curriculum.builds_graph(config):
        line = LINE / CHARACTERS
        entities = ENTITIES * sizes.passage.count * sizes.passage.mean
        works += _embed("graph", Texts(entities, line, line), stored=entities)
    if is_writing(config):
        works += _embed("questions", sizes.passage, sizes.question)
        if config.questions.margin > filter_questions.NO_MARGIN:
            materials = len(sizes.train) / config.questions.per_passage
            works += _likelihoods(context, "questions", materials, 2 * len(sizes.train))
    return works


def _score(context: Context, sizes: _Sizes) -> tuple[float, list[Work]]:
    """How many (chunk, answer) pairs are scored, and the works of their likelihoods."""
    limit, train = context.config.score.references or None, sizes.train
    pairs = sizes.scored * sum(len(question.answers[:limit]) for question in train)
    if not pairs:  # of a question without answers there is none
        return pairs, []
    by_document = plan.expected_distinct(sizes.pool, sizes.scored, len(train) / sizes.documents)
    passages = sizes.documents * by_document
    works = _likelihoods(context, "score", passages, 2 * pairs)
    if path := context.config.score.path:
        kinds = (
            (corpus.training_chunks(context), plan.PASSAGE, passages),
            (train, plan.QUESTION, len(train)),
        )
        for items, text, count in kinds:
            mean = measure(path, items, text).mean
            works.append(Work("score", "score", "embedding", count, mean))
    return pairs, works


def _train(config, sizes: _Sizes) -> list[Work]:
    positives = sizes.scored if curriculum.is_distilling(config) else config.score.positives
    by_pair = config.train.unit == "pair"
    # Rows of an epoch, and chunks of a row.
    rows, positives = (sizes.kept * positives, 1) if by_pair else (sizes.kept, positives)
    batch, works = min(config.train.batch, rows), []
    # Sets of documents that a step reads.
    groups = plan.expected_distinct(sizes.documents, 1, batch)
    if sizes.whole:
        groups = 1
    elif config.train.order == "document":
        groups = max(batch * sizes.documents / len(sizes.train), 1)
    for stage, number in curriculum.trainings(config):
        learned = positives
        if number > 1 and stage == config.train.stages[0]:
            works += _embed(in_round("candidates", number), sizes.learned, sizes.question)
        if curriculum.has_negatives(config, stage):
            sources = len(curriculum.MINING_SIZES.get(stage, ()))
            versions = sources * curriculum.mines_by_graph(config)
            rewritten = sizes.question.with_count(versions * config.graph.rewrites * sizes.kept)
            name = curriculum.mine_name(stage, number)
            works += _embed(name, sizes.learned, sizes.question, rewritten)
            learned += min(config.mine.negatives, config.mine.top * config.graph.rewrites)
        epochs = curriculum.epochs(config.train, stage)
        steps = math.ceil(epochs * rows / config.train.batch)
        passages = groups * plan.expected_distinct(sizes.pool, learned, batch / groups)
        step = (sizes.question.with_count(batch), sizes.learned.with_count(passages))
        name = curriculum.stage_name(stage, number)
        amounts = {"step": step, "objective": "" if keeps_tokens(config) else "contrastive"}
        works.append(Work(name, "retriever", "training", steps, **amounts))
    return works


def _rerank(config, sizes: _Sizes) -> list[Work]:
    if config.train.kind != "cross":
        return []
    passage, question = sizes.passage, sizes.question
    pair = Texts(0, passage.mean + question.mean, passage.longest + question.longest)
    steps = math.ceil(config.reranker.epochs * sizes.kept / config.train.batch)
    batch = min(config.train.batch, sizes.kept)
    step = (pair.with_count(batch * min(config.reranker.candidates, sizes.pool)),)
    reranked = sizes.asked.count * min(DEPTH, sizes.found)
    return [
        Work(curriculum.RERANKER, "reranker", "training", steps, step=step),
        Work("evaluate", "reranker", "embedding", reranked, pair.mean),
    ]


def _retrieve(config, sizes: _Sizes) -> list[Work]:
    """The vectors by which systems are fused and compared."""
    works = []
    if config.evaluate.fusion == "chosen":
        works += _embed(choice.FUSION, sizes.passage, sizes.question)
    tuned = curriculum.systems(config).tuned
    for _ in tuned:
        works += _embed(
            "evaluate", sizes.passage.with_count(sizes.found), sizes.asked, stored=sizes.stored
        )
    if sizes.kept < len(sizes.train):
        for _ in ("base", *tuned):
            works += _embed(choice.STAGE, sizes.anew(sizes.passage), sizes.question)
    return works


def _train_reader(context: Context, sizes: _Sizes) -> Work:
    settings, tokens = context.config.reader, plan.reader_tokens(context, sizes.train)
    text = Texts(min(settings.batch, len(sizes.train)), tokens, tokens)
    amounts = {"written": text.count * PAIR / CHARACTERS, "step": (text,)}
    return Work(WARM_READER, "reader", "training", settings.steps, **amounts)


def _likelihoods(context: Context, stage: str, prefixes: float, pairs: float) -> list[Work]:
    """The likelihoods of answers and questions; the tokens of a passage are computed once."""
    folder, train = context.config.generator.path, corpus.load_questions(context, "train")
    chunks = corpus.training_chunks(context) if stage == "score" else corpus.stored_chunks(context)
    passage = measure(folder, chunks, plan.PASSAGE).mean
    ends = measure(folder, train, plan.QUESTION).mean + plan.measure_answers(train, folder).mean
    return [
        Work(stage, "generator", "likelihoods", prefixes, passage),
        Work(stage, "generator", "likelihoods", pairs, 8 + ends, ends / 2, passage),
    ]


def _calls(context: Context, done: set[str], join) -> list[Work]:
    """The calls of extraction, gleaning, writing, seeds, rewriting and HyDE; none of rules."""
    config, works, train = context.config, [], corpus.load_questions(context, "train")
    asks = config.llm.backend != "none"
    local_path = config.llm.path if config.llm.backend == "local" else ""
    folder = local_path or config.generator.path

    def add_calls(stage: str, calls: Sequence, *characters: float, role: str = "llm") -> None:
        """Adds the calls of a stage; `characters` are those of `pending_calls`."""
        settings = llm_settings(config, role)
        works.append(pending_calls(context, stage, settings, calls, folder, *characters))

    if asks and curriculum.builds_graph(config) and not config.graph.openie:
        calls = extract.extraction_calls(context, _chunks_to_extract(context, done, train))
        length = measure(folder, corpus.stored_chunks(context), plan.PASSAGE).characters
        add_calls("extract", calls, EXTRACTED * length)
        first_pass, times = works[-1], config.graph.gleanings
        # The conversation of each further pass holds all passes before.
        read = first_pass.read + (times + 1) / 2 * first_pass.written
        fields = {
            "items": times * first_pass.items,
            "total": times * first_pass.total,
            "read": read,
        }
        if times:
            works.append(dataclasses.replace(first_pass, label="gleaning", **fields))
    if is_writing(config) and not writes_by_rules(config):
        calls = question_calls(context, materials_to_ask(context, join))
        add_calls("questions", calls, PAIR * config.questions.per_passage, role="questions")
    if curriculum.asks_for_seeds(config):
        add_calls(SEEDS, extract.seed_calls(context), NAMES)
    rewriter = config[section_of(config, "rewriter")].backend
    if rewriter != "none" and curriculum.mines_by_graph(config):
        ready = {"graph", "communities"} <= done
        keys = [(question.id, size) for question in train for size in ("large", "small")]
        empty = [{"question": id, "size": size, "nodes": []} for id, size in keys]
        calls = extract.rewriting_calls(context, None if ready else empty)
        sizes = config.graph.large, config.graph.small
        nodes = (
            sum(smallest + COMMUNITY_SHARE * (largest - smallest) for smallest, largest in sizes)
            / 2
        )
        amounts = VERSION * config.graph.rewrites, LINE * nodes * (not ready)
        add_calls("rewrite", calls, *amounts, role="rewriter")
        section = section_of(config, "rewriter") if rewriter == "local" else "rewriter"
        works[-1] = dataclasses.replace(works[-1], model=section)
    if config.search.expand == HYDE:
        calls = retrieve.passage_calls(context, corpus.load_questions(context, "held_out"))
        add_calls("baselines", calls, PASSAGE)
    return works


def _chunks_to_extract(context: Context, done: set[str], train: Sequence) -> set[str]:
    """The ids of chunks that extraction will read; random ones before candidates exist."""
    if "candidates" in done or is_writing(context.config):
        return extract.extracted_chunks(context)
    whole, chunks = corpus.searches_corpus(context), corpus.stored_chunks(context)
    searched, _ = retrieve.chunks_in_scope("corpus" if whole else "document", train, chunks)
    ids = [chunk.id for chunk in searched]
    count = min(context.config.data.candidates, len(ids)) if whole else len(ids)
    return {id for q in train for id in random.Random(q.id).sample(ids, count)}
