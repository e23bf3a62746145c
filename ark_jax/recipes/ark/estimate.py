"""What an ARK run has still to ask and to compute, for `ark-jax plan`.

The code that will do the work says what it would compute: alignment its pairs, the scorer its
shared prefixes, training the shape of its batches. What a model has yet to choose (candidates,
positives, negatives) is drawn at random.
"""

import dataclasses
import functools
import importlib.resources
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ark_jax.data.records import Chunk, Question
from ark_jax.estimate.llm_calls import (
    ENDPOINT_SPEED,
    ENOUGH_REPLIES,
    SET_PRICE,
    Calls,
    TokenCounter,
    cost_of,
    measured_ratio,
    price_for,
    token_counter,
    unanswered,
    waiting_seconds,
)
from ark_jax.evaluate.significance import what_can_be_told
from ark_jax.llm import complete
from ark_jax.llm.reply_cache import ReplyCache, reply_text
from ark_jax.pipeline.recipe import Forecast
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import estimate_reranker
from ark_jax.recipes.ark.curriculum import (
    MINING_SIZES,
    RERANKER,
    epochs,
    mine_name,
    miner_of,
    stage_name,
    systems,
)
from ark_jax.recipes.ark.extract import extracted_chunks, extraction_calls
from ark_jax.recipes.ark.join_passages import join_by_community
from ark_jax.recipes.ark.rewrite import parse_questions, rewriting_calls
from ark_jax.recipes.ark.scored_prompts import load_templates
from ark_jax.recipes.common import estimate, retrieve
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.corpus import (
    chunks_by_document,
    load_questions,
    searches_corpus,
    written_questions,
)
from ark_jax.recipes.common.corpus_vectors import stored_systems
from ark_jax.recipes.common.estimate_questions import (
    PAIR_TOKENS,
    foresee_questions,
    join_neighbours,
    pairs_to_score,
)
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.reader import questions_to_answer
from ark_jax.recipes.common.write_questions import materials_to_ask, question_calls
from ark_jax.recipes.common.written_from import is_writing
from ark_jax.runtime.log import read_rows

# How far a community goes from its least to its most entities.
# In the demo it is 0.22 (large) and 0.36 (small).
COMMUNITY_SHARE = 0.25
REPEATED = 160 / 144  # of the recording's passages of 160 tokens, 16 belong to the one before too
SCORE_BYTES = 32  # of scores.parquet for a pair
# How likely a training stage changes a passage that is read; in the demo .08 for the first passage
# and .18 for one of five.
MOVED = 0.15
FEW_UPDATES = 10  # of a training stage


@dataclasses.dataclass(frozen=True)
class Recording:
    """What the packaged replies show, in tokens.

    Attributes:
        written: tokens written for one token of a passage.
        entities: entities found in one token of a passage.
        line: tokens of an entity in a prompt for rewriting.
        version: tokens of a rewritten question in its reply.
    """

    written: float
    entities: float
    line: float
    version: float

    @classmethod
    def read(cls, count: TokenCounter) -> "Recording":
        from ark_jax.graph.extract import parse_reply

        folder = Path(str(importlib.resources.files("ark_jax.demo")))
        replies: dict[str, dict[str, str]] = {"extract": {}, "rewrite": {}}
        for row in ReplyCache(folder / "replies.jsonl").rows.values():
            kind, _, item = row.get("item", "").partition("/")
            if kind in replies:  # a workdir's replies hold other kinds too
                replies[kind][item] = reply_text(row["reply"])
        documents = {item.split("#")[0] for item in replies["extract"]}
        rows = read_rows(folder / "documents.jsonl")
        passages = REPEATED * sum(count([x["text"] for x in rows if x["id"] in documents]))
        parsed = [parse_reply(text, item) for item, text in replies["extract"].items()]
        entities = [entity for reply in parsed for entity in reply[0]]
        lines = [f"- {e.name} ({e.type}): {e.description}\n" for e in entities]
        tokens = {kind: sum(count(list(texts.values()))) for kind, texts in replies.items()}
        versions = sum(len(parse_questions(text)) for text in replies["rewrite"].values())
        return cls(
            written=tokens["extract"] / passages,
            entities=len(entities) / passages,
            line=statistics.fmean(count(lines)),
            version=tokens["rewrite"] / versions,
        )


# --- the language model ---------------------------------------------------------------------------


def llm_calls(context: Context, done: set[str]) -> tuple[list[Calls], list[str]]:
    """The calls of extraction, gleaning, writing, rewriting, a judge, and a reader not local.

    Returns:
        the calls, and notes on what the figures rest on.
    """
    config = context.config
    if config.llm.backend not in complete.BACKENDS:
        raise ValueError(
            f"llm.backend={config.llm.backend!r}: must be one of {', '.join(complete.BACKENDS)}"
        )
    count, counted_by = token_counter(config)
    notes = [f"LLM tokens: counted by {counted_by}", *_price_notes(config)]
    calls = []
    recording = Recording.read(count)
    foresee_questions(context, done)
    cached = list(ReplyCache(context.workdir / "llm" / "replies.jsonl").rows.values())
    kinds = {"extract": _prepare_extraction, "rewrite": _prepare_rewriting}
    if is_writing(config):
        kinds = {"extract": kinds["extract"], "questions": _prepare_writing, **kinds}
    for kind, prepare in kinds.items():
        prompts_made, prompt_tokens, expected, remarks = prepare(context, done, count, recording)
        replies = [row for row in cached if row.get("kind") == kind]
        notes += remarks
        made, more = _estimate_calls(
            config, kind, kind in done, prompts_made, prompt_tokens, expected, replies, count
        )
        calls += made
        notes += more
    answering = estimate.answer_calls(config, context, systems(config), done, count)
    if any(x.calls for x in answering):
        notes.append(
            "reading and judge are at most this: what systems have in common is asked once or "
            "not at all"
        )
    return calls + answering, notes


def _price_notes(config) -> list[str]:
    settings, price = config.llm, price_for(config.llm)
    if settings.backend != "openai":
        return []
    if price is None:
        return [f"price: that of {settings.model!r} is unknown; {SET_PRICE}"]
    return [
        f"price: {settings.model} takes ${price[0]:g} for a million tokens in and ${price[1]:g} "
        "out; what has to be asked again comes on top"
    ]


Prepared = tuple[list[complete.Call], dict[str, float], dict[str, float], list[str]]


def _prepare_extraction(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """The calls, tokens of each prompt, tokens expected of each reply, notes."""
    calls = []
    if not context.config.graph.openie:
        calls = extraction_calls(context, chunks_to_extract(context, done))
    passages = count([call.fields["passage"] for call in calls])
    expected = {call.item: recording.written * n for call, n in zip(calls, passages, strict=True)}
    return calls, _prompt_tokens(calls, count), expected, []


def chunks_to_extract(context: Context, done: set[str]) -> set[str]:
    """The chunks that extraction will read; before the candidates exist, as many at random."""
    if "candidates" in done or is_writing(context.config):
        return extracted_chunks(context)
    pools = estimate.training_pools(context, load_questions(context, "train"))
    return {chunk.id for pool in pools.values() for chunk in pool}


def _prepare_writing(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """As `_prepare_extraction`; before a graph exists, other passages stand for those it joins."""
    join = join_by_community if "graph" in done else join_neighbours
    calls = question_calls(context, materials_to_ask(context, join))
    pairs = context.config.questions.per_passage
    expected = dict.fromkeys((call.item for call in calls), PAIR_TOKENS * pairs)
    notes = []
    if "questions" not in done:
        notes.append(
            "questions: all that follows is at most this, as if no written question were dropped"
        )
    return calls, _prompt_tokens(calls, count), expected, notes


def _prepare_rewriting(
    context: Context, done: set[str], count: TokenCounter, recording: Recording
) -> Prepared:
    """As `_prepare_extraction`; before a graph exists, prompts are estimated without entities."""
    settings = context.config.graph
    graph_exists = {"graph", "communities"} <= done
    calls = rewriting_calls(context, None if graph_exists else _empty_communities(context))
    tokens = _prompt_tokens(calls, count)
    expected = {call.item: recording.version * settings.rewrites for call in calls}
    if graph_exists or "rewrite" in done:
        return calls, tokens, expected, []
    nodes = {}
    for size in ("large", "small"):
        least, most = settings[size]
        nodes[size] = least + COMMUNITY_SHARE * (most - least)
    for call in calls:
        tokens[call.item] += recording.line * nodes[call.item.rsplit("/", 1)[1]]
    note = (
        f"rewriting: an estimate until the graph exists, with {nodes['large']:.0f} and "
        f"{nodes['small']:.0f} entities of {recording.line:.0f} tokens in a prompt"
    )
    return calls, tokens, expected, [note]


def _prompt_tokens(calls: Sequence[complete.Call], count: TokenCounter) -> dict[str, float]:
    lengths = count([call.turns[0] for call in calls], asked=True)
    return {call.item: float(n) for call, n in zip(calls, lengths, strict=True)}


def _empty_communities(context: Context) -> list[dict]:
    """The rows that the communities stage will store, without entities."""
    return [
        {"question": question.id, "size": size, "nodes": []}
        for question in load_questions(context, "train")
        for size in ("large", "small")
    ]


def _estimate_calls(
    config,
    kind: str,
    finished: bool,
    calls: list[complete.Call],
    prompt_tokens: dict[str, float],
    expected: dict[str, float],
    replies: list[dict],
    count: TokenCounter,
) -> tuple[list[Calls], list[str]]:
    """One kind of calls, and gleaning beside extraction; notes on their figures."""
    settings = config.llm
    pending = [] if finished else unanswered(llm_settings(config), calls, replies)
    ratio, source = settings.output_ratio or None, "config.llm.output_ratio"
    if ratio is None:
        ratio, measured = measured_ratio(replies, prompt_tokens, count)
        source = f"{measured:,} replies at hand" if ratio else "the recording in the package"
    written = 0.0
    for call in pending:
        guess = expected[call.item] if ratio is None else ratio * prompt_tokens[call.item]
        written += min(guess, settings.max_tokens)
    read = sum(prompt_tokens[call.item] for call in pending)
    seconds = [row["seconds"] for row in replies if row.get("seconds")]
    timed = len(seconds) >= ENOUGH_REPLIES
    pace = statistics.fmean(seconds) if timed else written / max(len(pending), 1) / ENDPOINT_SPEED
    notes = []
    if pending:
        notes.append(f"{kind}: {written / read:.2f} tokens out for one in, by {source}")
    if pending and settings.backend == "openai":
        measured = f"as {len(seconds):,} replies at hand took"
        basis = measured if timed else f"assuming {ENDPOINT_SPEED:g} tokens/s"
        notes.append(f"{kind}: {pace:.1f} s a reply, {basis}; {settings.concurrency} at once")
    passes = [(kind, 1, read, written)]
    if kind == "extract" and config.graph.gleanings:
        times = config.graph.gleanings
        # The k-th further pass is asked in one conversation with all that came before.
        conversation = times * read + times * (times + 1) / 2 * written
        passes.append(("gleaning", times, conversation, times * written))
        if pending:
            notes.append("gleaning: at most this, if each further pass writes as much as the first")
    price = price_for(settings)
    made = [
        Calls(
            label,
            kind,
            times * len(calls),
            times * len(pending),
            round(tokens_in),
            round(tokens_out),
            cost_of(price, tokens_in, tokens_out),
            waiting_seconds(settings, times * len(pending), tokens_in + tokens_out, pace),
        )
        for label, times, tokens_in, tokens_out in passes
    ]
    return made, notes


# --- the devices ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Draw:
    """Chunks of a question, drawn at random, as many as models will choose."""

    candidates: list[Chunk]
    positives: list[str]
    negatives: list[str]

    @classmethod
    def from_chunks(cls, question: Question, chunks: Sequence[Chunk], config) -> "Draw":
        order = random.Random(f"{config.seed} {question.id}").sample(chunks, len(chunks))
        candidates = order[: config.score.candidates or None]
        positives = [chunk.id for chunk in candidates[: config.score.positives]]
        others = [chunk.id for chunk in order if chunk.id not in positives]
        negatives = min(config.mine.negatives, config.mine.top * config.graph.rewrites)
        return cls(candidates, positives, others[:negatives])


def forecast(context: Context, done: set[str]) -> Forecast:
    """The work of all stages that are not done, what is stored, and notes.

    Searches, PageRank and compilation are not counted.
    """
    context.enter_mesh()
    foresee_questions(context, done)
    return _Forecaster(context, done).forecast()


class _Forecaster:
    """Sizes the stages of one run; `work`, `disk` and `notes` collect what it finds."""

    def __init__(self, context: Context, done: set[str]):
        from ark_jax.estimate import device_time
        from ark_jax.estimate.device_work import WeightlessModel

        config = context.config
        self.context, self.config, self.done = context, config, done
        self.work: list = []
        self.disk: dict[str, int] = {}
        self.notes: list[str] = []
        self.base = WeightlessModel.from_folder(
            config.retriever.path,
            compute=config.retriever.compute,
            batch=config.retriever.batch_tokens,
            head=False,
        )
        self.scorer = self._generator(config.generator.path)
        self.tokenizer = device_time.load_tokenizing_retriever(self.base)
        self.lm = device_time.RecordingScorer.from_model(self.scorer)
        count, _ = token_counter(config)
        self.recording = Recording.read(count)
        self.chunks = chunks_by_document(context)
        self.train = load_questions(context, "train")
        self.held_out = load_questions(context, "held_out")
        pools = estimate.training_pools(context, self.train)
        self.training_chunks = {chunk.id: chunk for pool in pools.values() for chunk in pool}
        self.draws = {q.id: Draw.from_chunks(q, pools[q.id], config) for q in self.train}
        self.passages = self._tokens([x.passage for x in self.training_chunks.values()], "document")
        self.queries = self._tokens([q.question for q in self.train], "query")
        chunks = sum(map(len, self.chunks.values()))
        # A stage that is to run will change the corpus or the model that the vectors are of.
        lasting = {"base", *done} if "data" in done else set()
        stored = stored_systems(context.workdir) & lasting
        self.embedded = dict.fromkeys(stored, chunks)  # system -> number of its passages

    def _generator(self, path: str):
        from ark_jax.estimate.device_work import WeightlessModel

        settings = self.config.generator
        return WeightlessModel.from_folder(
            path, compute=settings.dtype, batch=settings.batch_tokens, head=True
        )

    def _tokens(self, texts: Sequence[str], kind: str) -> list[int]:
        return [len(row) for row in self.tokenizer.tokenize(texts, kind=kind)]

    def _embed(self, stage: str, lengths: Sequence[int]) -> None:
        flops = self.base.text_flops(lengths)
        self.work.append(self.base.work(stage, "embedding", sum(lengths), flops))

    def _not_embedded(self, system: str, passages: Sequence[int]) -> Sequence[int]:
        """The lengths of passages that a system has yet to embed, which are all or none."""
        if not searches_corpus(self.context):
            return passages
        if self.embedded.get(system) == len(passages):
            return []
        self.embedded[system] = len(passages)
        size = 4 * len(passages) * self.tokenizer.width
        self.disk["vectors"] = self.disk.get("vectors", 0) + size
        return passages

    def forecast(self) -> Forecast:
        if "candidates" not in self.done:
            passages = self._not_embedded("base", self._searched_passages())
            self._embed("candidates", [*passages, *self.queries])
        self._graph()
        self._questions()
        self._score()
        self._training()
        self._reranker()
        self._retrieval()
        self._warm_reader()
        self._reading()
        if "export" not in self.done:
            self.disk["export"] = self.base.bytes + (self.reranker.bytes if self.reranker else 0)
        inputs = estimate.count_inputs(self.context)
        count = len(self.held_out)
        limit = f"{count:,} held-out questions: {what_can_be_told(count)}"
        notes = (*self._device_notes(), *self.notes, *self._omissions(), limit)
        return Forecast(inputs, tuple(self.work), self.disk, notes)

    def _graph(self) -> None:
        if "graph" not in self.done:
            entities = round(self.recording.entities * sum(self.passages))
            self._embed("graph", [round(self.recording.line)] * entities)
            size = 4 * entities * self.tokenizer.width
            self.disk["vectors"] = self.disk.get("vectors", 0) + size

    def _questions(self) -> None:
        if not is_writing(self.config) or "questions" in self.done:
            return
        from ark_jax.estimate import device_time

        passages = self._not_embedded("base", self.corpus_passages)
        asked = [
            q.question
            for part in ("train", "held_out")
            for q in written_questions(self.context, part)
        ]
        self._embed("questions", [*passages, *self._tokens(asked, "query")])
        self.lm.log_likelihood(pairs_to_score(self.context))
        tokens, flops = device_time.shared_prefix_work(self.scorer, self.lm.rows)
        self.work.append(self.scorer.work("questions", "likelihoods", tokens, flops))

    def _score(self) -> None:
        if "score" in self.done:
            return
        config = self.config
        templates = load_templates(config.prompts)
        tokens, flops = _scoring_work(
            self.lm, self.scorer, templates, self.train, self.draws, config
        )
        self.work.append(self.scorer.work("score", "likelihoods", tokens, flops))
        pairs = sum(
            len(self.draws[q.id].candidates) * len(q.answers[: config.score.references or None])
            for q in self.train
        )
        self.disk["scores"] = SCORE_BYTES * pairs

    def _training(self) -> None:
        from ark_jax.estimate import device_time
        from ark_jax.train import checkpoints

        config = self.config
        query_lengths = dict(zip([q.id for q in self.train], self.queries, strict=True))
        passage_lengths = dict(zip(self.training_chunks, self.passages, strict=True))
        stored_checkpoints = trained = 0
        updates = {}
        for stage in config.train.stages:
            if stage in MINING_SIZES and mine_name(stage) not in self.done:
                questions = math.ceil(config.score.keep * len(self.train))
                versions = config.graph.rewrites * len(MINING_SIZES[stage]) * questions
                rewritten = [round(self.recording.version)] * versions
                miner = miner_of(config, stage)
                passages = self._not_embedded(miner, self._searched_passages())
                self._embed(mine_name(stage), [*passages, *self.queries, *rewritten])
            if stage_name(stage) not in self.done:
                steps, tokens, flops = device_time.training_work(
                    self.base,
                    self._examples(),
                    (query_lengths, passage_lengths),
                    config.train,
                    epochs(config.train, stage),
                    config.seed + stage,
                    stage in MINING_SIZES,
                )
                self.work.append(self.base.work(stage_name(stage), "training", tokens, flops))
                updates[stage_name(stage)] = steps
                stored = min(steps // config.train.save_every, checkpoints.MAX_TO_KEEP + 1)
                stored_checkpoints, trained = max(stored_checkpoints, stored), trained + 1
        if updates:
            counts = ", ".join(f"{steps:,} in {name}" for name, steps in updates.items())
            few = "; so few hardly change a retriever" * (min(updates.values()) < FEW_UPDATES)
            self.notes.append(f"updates of the weights: {counts}{few}")
        if trained:
            self.disk["models"] = trained * self.base.bytes
            # Each checkpoint holds weights or adapter and two moments, float32.
            size = 3 * 4 * device_time.trainable_parameters(self.base, config.train)
            self.disk["checkpoints"] = stored_checkpoints * size

    @functools.cached_property
    def reranker(self):
        """The model that a reranker begins from, if one is trained."""
        from ark_jax.estimate.device_work import WeightlessModel

        config = self.config
        if config.train.kind != "cross":
            return None
        return WeightlessModel.from_folder(
            config.reranker.path or config.retriever.path,
            compute=config.retriever.compute,
            batch=config.retriever.batch_tokens,
            head=False,
        )

    def _reranker(self) -> None:
        if self.reranker is None or RERANKER in self.done:
            return
        lengths = dict(zip(self.training_chunks, self.passages, strict=True))
        lists = []
        for question in self.train:
            draw = self.draws[question.id]
            chunks = dict.fromkeys([*(chunk.id for chunk in draw.candidates), *draw.negatives])
            chosen = list(chunks)[: self.config.reranker.candidates]
            lists.append([lengths[chunk] for chunk in chosen])
        work = estimate_reranker.training_work(self.reranker, self.queries, lists, self.config)
        self.work.append(work)
        self.disk["models"] = self.disk.get("models", 0) + self.reranker.bytes

    def _searched_passages(self) -> list[int]:
        """The lengths of all passages that training questions are compared with."""
        return self.corpus_passages if searches_corpus(self.context) else self.passages

    @functools.cached_property
    def corpus_passages(self) -> list[int]:
        return self._tokens(
            [x.passage for group in self.chunks.values() for x in group], "document"
        )

    def _examples(self) -> list:
        from ark_jax.train import batches

        examples = [
            batches.Example(
                question.id,
                "\n".join(question.documents),
                tuple(self.draws[question.id].positives),
                tuple(self.draws[question.id].negatives),
            )
            for question in self.train
            if self.draws[question.id].positives
        ]
        return examples[: math.ceil(self.config.score.keep * len(examples))]

    def _retrieval(self) -> None:
        stages = {"baselines": ("base",), "evaluate": systems(self.config).tuned}
        if all(stage in self.done for stage in stages):
            return
        chunks, _ = retrieve.searched_chunks(self.context, self.held_out, self.chunks)
        passages = self._tokens([chunk.passage for chunk in chunks], "document")
        asked = self._tokens([question.question for question in self.held_out], "query")
        for stage, names in stages.items():
            if stage not in self.done:
                texts = [(*self._not_embedded(name, passages), *asked) for name in names]
                self._embed(stage, list(itertools.chain(*texts)))
        if self.reranker is not None and "evaluate" not in self.done:
            self.work.append(
                estimate_reranker.reranking_work(self.reranker, asked, passages, self.config)
            )

    @functools.cached_property
    def _reader(self) -> tuple:
        """The model that answers, and one that tokenises for it."""
        from ark_jax.estimate import device_time

        if not self.config.reader.path:
            return self.scorer, self.lm
        model = self._generator(self.config.reader.path)
        return model, device_time.RecordingScorer.from_model(model)

    def _warm_reader(self) -> None:
        config = self.config
        if not config.reader.warm or WARM_READER in self.done or not self.train:
            return
        model, lm = self._reader
        length, _ = estimate.reader_prompts(self.context, lm, self.train, self.chunks)
        prompts = config.reader.steps * min(config.reader.batch, len(self.train))
        flops = 3 * prompts * model.text_flops([round(length)])  # a backward pass takes two
        self.work.append(model.work(WARM_READER, "training", prompts * length, flops))
        self.disk["models"] = self.disk.get("models", 0) + 4 * model.parameters

    def _reading(self) -> None:
        config = self.config
        questions = questions_to_answer(self.held_out, config.evaluate.read)
        if "evaluate" in self.done or config.reader.backend != "local" or not questions:
            return
        model, lm = self._reader
        length, shared = estimate.reader_prompts(self.context, lm, questions, self.chunks)
        readers = len(systems(config).retrieving)
        moved = 1 - (1 - MOVED) ** config.evaluate.passages
        different = len(questions) * (1 + (readers - 1) * moved)
        new_tokens = config.evaluate.max_new_tokens
        self.work.append(model.generation("evaluate", different, length, new_tokens, shared))
        self.notes.append(
            f"reading: about {different:,.0f} of {readers * len(questions):,} prompts, for systems "
            "often find the same passages; less where answers end early"
        )

    def _device_notes(self) -> list[str]:
        from ark_jax.estimate import device_time

        return [device_time.speed_note((self.base, self.scorer))] if self.work else []

    def _omissions(self) -> list[str]:
        settings = self.config.evaluate
        compared = "baselines" not in self.done and settings.retrievers
        whole = "evaluate" not in self.done and "full" in settings.baselines
        reranked = "evaluate" not in self.done and settings.rerank
        omitted = [
            *(["embedding with evaluate.retrievers"] if compared else []),
            *(["reading whole documents (full)"] if whole else []),
            *(["reranking with evaluate.rerank"] if reranked else []),
        ]
        return [f"left out: {' and '.join(omitted)}"] if omitted else []


def _scoring_work(
    lm,
    model,
    templates: dict[str, str],
    questions: Sequence[Question],
    draws: dict[str, Draw],
    config,
) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of all candidates' likelihoods; prefixes are shared as the scorer does."""
    from ark_jax.estimate import device_time
    from ark_jax.recipes.ark import alignment

    references = config.score.references
    pairs = {
        q.id: 2 * len(draws[q.id].candidates) * len(q.answers[: references or None])
        for q in questions
    }
    every = max(-(-sum(pairs.values()) // estimate.SAMPLE), 1)
    tokens, flops, scored = 0.0, np.zeros(2), 0
    for group in _prefix_groups(questions, pairs)[::every]:
        candidates = {q.id: [(chunk, 0.0) for chunk in draws[q.id].candidates] for q in group}
        alignment.align(
            lm, templates, group, candidates, references=references, batch_tokens=0, label=""
        )
        scored += len(lm.rows)
        group_tokens, group_flops = device_time.shared_prefix_work(model, lm.rows)
        tokens, flops = tokens + group_tokens, flops + group_flops
    scale = sum(pairs.values()) / max(scored, 1)
    return tokens * scale, flops * scale


def _prefix_groups(questions: Sequence[Question], pairs: dict[str, int]) -> list[list[Question]]:
    """Questions over the same documents, in groups of at most estimate.SAMPLE pairs.

    Questions over different documents share no prefix.
    """
    ordered = sorted(questions, key=lambda q: (q.documents, q.id))
    groups: list[list[Question]] = []
    for _, same_documents in itertools.groupby(ordered, key=lambda q: q.documents):
        groups.append([])
        size = 0
        for question in same_documents:
            if groups[-1] and size + pairs[question.id] > estimate.SAMPLE:
                groups.append([])
                size = 0
            groups[-1].append(question)
            size += pairs[question.id]
    return groups
