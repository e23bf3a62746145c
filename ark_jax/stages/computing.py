"""What the stages compute, from sizes alone: tokens, FLOPs and seconds, and the bytes that stay on disk.

The code that will do the work says what it would compute: alignment its pairs, sharing their prefixes, training the shape of its
batches. What a model has yet to choose (candidates, positives, negatives) is drawn at random.
"""

import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Sequence

import jax
import numpy as np

from ark_jax import layout
from ark_jax.data import curriculum, positives
from ark_jax.data.records import Chunk, Question
from ark_jax.evaluate import answers
from ark_jax.models import hf, language, lora, retriever, sharing
from ark_jax.pipeline import Context
from ark_jax.stages import systems
from ark_jax.stages.curriculum import epochs
from ark_jax.stages.files import chunks_of, pool, questions_of
from ark_jax.stages.reading import answered
from ark_jax.stages.work import Model, Work
from ark_jax.text import prompts
from ark_jax.text.tokens import load_tokenizer
from ark_jax.train import loop
from ark_jax.train.checkpoints import KEPT

SAMPLE = 8192  # texts that are looked at one by one; of more, every so many speak for all
ROW = 32  # bytes of scores.parquet for a pair
MOVED = 0.15  # how likely a training stage changes a passage that is read: in the demo 0.08 for the first, 0.18 for one of five


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What models will choose among the chunks of a question, drawn at random and as many as they will be."""

    candidates: list[Chunk]
    positives: list[str]
    negatives: list[str]

    @classmethod
    def of(cls, question: Question, chunks: Sequence[Chunk], config) -> "Drawn":
        order = random.Random(f"{config.seed} {question.id}").sample(chunks, len(chunks))
        candidates = order[: config.score.candidates or None]
        chosen = [x.id for x in candidates[: config.score.positives]]
        rest = [x.id for x in order if x.id not in chosen]
        return cls(candidates, chosen, rest[: min(config.mine.negatives, config.mine.top * config.graph.rewrites)])


def computing(context: Context, done: set[str], *, entities: float, line: float,
              version: float) -> tuple[list[Work], dict[str, int], list[str]]:
    """The work of all stages that are not done, bytes on disk by what they are, and remarks.

    Searches, PageRank and compilation are not counted.

    Args:
        entities: that a token of the training chunks gives; line, version: tokens of an entity, of a rewritten question.
    """
    layout.enter_mesh(context.config.mesh)
    c, chunks = context.config, chunks_of(context)
    base = Model.of(c.retriever.path, compute=c.retriever.compute, batch=c.retriever.batch_tokens, head=False)
    judge = Model.of(c.generator.path, compute=c.generator.dtype, batch=c.generator.batch_tokens, head=True)
    reader, lm = tokenizing(base), Judge.of(judge)
    tokens = lambda texts, kind: [len(row) for row in reader.tokenize(texts, kind=kind)]
    train, held_out = questions_of(context, "train"), questions_of(context, "held_out")
    used = {x.id: x for q in train for x in pool(q, chunks)}
    drawn = {q.id: Drawn.of(q, pool(q, chunks), c) for q in train}
    passages, asked = tokens([x.text for x in used.values()], "document"), tokens([q.question for q in train], "query")
    work: list[Work] = []
    disk: dict[str, int] = {}

    def embed(stage: str, texts: Sequence[int], times: int = 1) -> None:
        work.append(base.work(stage, "embedding", times * sum(texts), times * base.each(texts)))

    if "graph" not in done:
        found = round(entities * sum(passages))
        embed("graph", [round(line)] * found)
        disk["vectors"] = 4 * found * reader.width
    if "score" not in done:
        embed("score", [*passages, *asked])
        work.append(judge.work("score", "likelihoods", *scoring(lm, judge, train, drawn, c)))
        disk["scores"] = ROW * sum(len(drawn[q.id].candidates) * len(q.answers[: c.score.references or None]) for q in train)
    ids = dict(zip([q.id for q in train], asked, strict=True)), dict(zip(used, passages, strict=True))
    kept = left = 0
    for stage in c.train.stages:
        if stage != 1 and f"mine{stage}" not in done:
            kept_of = math.ceil(c.score.keep * len(train))
            embed(f"mine{stage}", [*passages, *asked, *[round(version)] * (c.graph.rewrites * (1 if stage else 2) * kept_of)])
        if f"stage{stage}" not in done:
            steps, *rest = training(base, train, drawn, ids, c, stage)
            work.append(base.work(f"stage{stage}", "training", *rest))
            kept, left = max(kept, min(steps // c.train.save_every, KEPT + 1)), left + 1
    if left:
        disk["models"] = left * base.bytes
        # Those that are kept and the one being written. Weights or adapter and two moments, float32.
        disk["checkpoints"] = kept * 3 * 4 * trained(base, c)
    if not {"baselines", "evaluate"} <= done:
        documents = {d for q in held_out for d in q.documents}
        known = [x.text for document, some in chunks.items() if document in documents for x in some]
        searched = [*tokens(known, "document"), *tokens([q.question for q in held_out], "query")]
        for name, times in (("baselines", 1), ("evaluate", len(systems.trained(c)) - 1)):
            if name not in done:
                embed(name, searched, times)
    if "evaluate" not in done:
        some = answered(held_out, c.evaluate.read)
        if c.reader.backend == "local" and some:
            reads = judge if not c.reader.path else Model.of(c.reader.path, compute=c.generator.dtype,
                                                             batch=c.generator.batch_tokens, head=True)
            length, head = reading(context, lm if reads is judge else Judge.of(reads), some, chunks)
            reading_too = len(systems.finding(c))
            differ = len(some) * (1 + (reading_too - 1) * (1 - (1 - MOVED) ** c.evaluate.passages))
            work.append(reads.generation("evaluate", differ, length, c.evaluate.max_new_tokens, head))
    if "export" not in done:
        disk["export"] = base.bytes
    notes = []
    if work:
        speeds = {f"{m.speed() / 1e9:,.0f} GFLOP/s at {m.folder.name}'s width in {m.compute}": None for m in (base, judge)}
        devices = math.prod(jax.sharding.get_mesh().shape.values())
        notes.append(f"device: {devices} x {jax.devices()[0].device_kind}, measured {' and '.join(speeds)}; times leave out "
                     "what is compiled, searched and saved")
    if any(x.what == "reading" and x.stage == "evaluate" for x in work):
        notes.append(f"reading: about {differ:,.0f} of {reading_too * len(some):,} prompts, for systems often find the same "
                     "passages; less where answers end early")
    left_out = {"embedding with evaluate.retrievers": "baselines" not in done and c.evaluate.retrievers,
                "reading whole documents (full)": "evaluate" not in done and "full" in c.evaluate.baselines}
    if any(left_out.values()):
        notes.append(f"left out: {' and '.join(what for what, due in left_out.items() if due)}")
    return work, disk, notes


class Judge(language.LanguageModel):
    """A language model without weights, which keeps what it should score as token ids and numbers of target tokens."""

    @classmethod
    def of(cls, model: Model) -> "Judge":
        if not model.causal:
            raise ValueError(f"{model.folder}: generates no text; give a decoder as generator.path")
        tokenizer = load_tokenizer(str(model.folder), model.cfg.vocab)
        longest = hf.read_config(model.folder).get("max_position_embeddings", 2048)
        return cls(None, model.cfg, tokenizer, model.folder, longest, (tokenizer.eos_token_id or 0,))

    def log_likelihood(self, pairs, **_) -> language.LogLikelihoods:
        self.rows = self._encode_pairs(pairs)
        return language.LogLikelihoods(np.zeros(len(pairs), np.float32), np.ones(len(pairs), np.int32))


def tokenizing(model: Model) -> retriever.Retriever:
    """A retriever that can only tokenise."""
    (queries, width), (limit, lower) = retriever._read_settings(model.folder), retriever._read_limit(model.folder)
    tokenizer = load_tokenizer(str(model.folder), model.cfg.vocab)
    positions = hf.read_config(model.folder).get("max_position_embeddings", 512) if model.causal else model.cfg.max_length
    return retriever.Retriever(None, model.cfg, tokenizer, model.folder, {}, "", queries,
                               min(limit or tokenizer.model_max_length, positions), width or model.cfg.width, lower)


def scoring(lm: Judge, model: Model, questions: Sequence[Question], drawn: dict[str, Drawn], config) -> tuple[float, np.ndarray]:
    """Tokens and FLOPs of the likelihoods of all candidates, with prefixes shared as the scorer shares them."""
    templates = {name: prompts.load(name, config.prompts[name]) for name in prompts.TARGET}
    pairs_of = lambda q: 2 * len(drawn[q.id].candidates) * len(q.answers[: config.score.references or None])
    runs: list[list[Question]] = []  # over the same documents, since others share nothing
    for _, some in itertools.groupby(sorted(questions, key=lambda q: (q.documents, q.id)), key=lambda q: q.documents):
        runs.append([])
        for q in some:
            if sum(map(pairs_of, [*runs[-1], q])) > SAMPLE and runs[-1]:
                runs.append([])
            runs[-1].append(q)
    every = -(-sum(map(pairs_of, questions)) // SAMPLE)
    tokens, flops, looked_at = 0.0, np.zeros(2), 0
    for run in runs[:: max(every, 1)]:
        some = {q.id: [(chunk, 0.0) for chunk in drawn[q.id].candidates] for q in run}
        positives.align(lm, templates, run, some, references=config.score.references, batch_tokens=0, label="")
        looked_at += len(lm.rows)
        for group in sharing.share([(ids, len(ids) - n - 1) for ids, n in lm.rows]):
            prefix, own = group.prefix, [len(lm.rows[i][0]) - group.prefix for i in group.members]
            seen = prefix * (prefix + 1) / 2 + sum(n * prefix + n * (n + 1) / 2 for n in own)
            tokens += prefix + sum(own)
            flops += model.flops(prefix + sum(own), seen, sum(lm.rows[i][1] for i in group.members))
    all_of_them = sum(map(pairs_of, questions)) / max(looked_at, 1)
    return tokens * all_of_them, flops * all_of_them


def training(model: Model, questions: Sequence[Question], drawn: dict[str, Drawn], lengths: tuple[dict[str, int], dict[str, int]],
             config, stage: int) -> tuple[int, float, np.ndarray]:
    """Steps, tokens and FLOPs of a stage. A step computes what its fullest batch needs.

    A backward pass takes twice the products of a forward one, and five of attention's for two, since it weighs anew.
    """
    c = config.train
    examples = [curriculum.Example(q.id, "\n".join(q.documents), tuple(drawn[q.id].positives), tuple(drawn[q.id].negatives))
                for q in questions if drawn[q.id].positives]
    examples = examples[: math.ceil(config.score.keep * len(examples))]
    order = curriculum.order(examples, epochs=epochs(c, stage), seed=config.seed + stage, by=c.order)
    batches = [[examples[j] for j in order[at : at + c.batch]] for at in range(0, len(order), c.batch)]
    named = ([[e.question for e in some] for some in batches],
             [curriculum.chunks_of(some, use_negatives=stage != 1) for some in batches])
    total, flops = 0, np.zeros(2)
    for names, known, pieces in zip(named, lengths, (1, c.chunks), strict=True):
        side = loop.Side.of(names, {name: range(n) for name, n in known.items()}, pieces)
        tokens = side.room * side.pieces * layout.batch_multiple()
        pairs = side.rows * side.length**2 * (0.5 if model.causal else 1)
        again = (c.remat == "all") + (pieces > 1)
        flops += len(batches) * model.flops(tokens, pairs) * (3 + again, 3.5 + again)
        total += len(batches) * tokens
    return len(batches), total, flops


def trained(model: Model, config) -> int:
    """Parameters that training changes."""
    c = config.train
    if not c.lora_rank:
        return model.total
    rows = lora.rows(model.folder, c.lora_targets)
    adapter = jax.eval_shape(lambda: lora.init(rows, model.cfg, rank=c.lora_rank, alpha=c.lora_alpha, key=jax.random.key(0)))
    return sum(x.size for x in jax.tree.leaves(adapter))


def reading(context: Context, lm: Judge, questions: Sequence[Question], chunks: dict[str, list[Chunk]]) -> tuple[float, int]:
    """Mean tokens of a reader's prompt, and how many all of them begin with."""
    c = context.config
    template = prompts.load("read", c.prompts.read)
    asked = []
    for q in questions[:: -(-len(questions) // SAMPLE)]:
        some = pool(q, chunks)
        some = random.Random(q.id).sample(some, min(c.evaluate.passages, len(some)))
        asked.append(lm.chat(answers.prompt(template, q.question, [x.text for x in some])))
    ids = lm.prompt_ids(asked)
    both = zip(min(ids), max(ids), strict=False)  # any other lies between these two
    return statistics.fmean(map(len, ids)), sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))
