"""The calls that a run has still to make of a language model: how many, their tokens, what they cost and how long they take."""

import dataclasses
import importlib.resources
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ark_jax.log import read_rows
from ark_jax.pipeline import Context
from ark_jax.stages import graph, systems
from ark_jax.stages.files import chunks_of, llm_settings, questions_of
from ark_jax.stages.reading import answered
from ark_jax.text import llm, prompts
from ark_jax.text.cost import price_of
from ark_jax.text.replies import Replies, text_of

ENOUGH = 20  # replies of a kind at hand to measure on; with fewer, the packaged recording speaks
VERDICT = 80  # tokens of a judge's reply
WITHIN = {"gleaning": "extract", "reading": "evaluate"}  # the stages of calls that go by another name
SPEED = 60.0  # tokens a second in which an endpoint writes a reply, where no replies at hand say
TOWARDS = 0.25  # how far a community goes from its least to its most entities; in the demo 0.22 for large, 0.36 for small
REPEATED = 160 / 144  # of each of the recording's passages of 160 tokens, 16 are also the one before's
SET_PRICE = "give USD of a million tokens in and out, as in --config.llm.price='(0.3,2.5)'"

Count = Callable[..., list[int]]  # tokens of texts; with asked=True in the form in which a model is asked


@dataclasses.dataclass(frozen=True)
class Calls:
    """What one kind of calls is still to ask: nothing once its stage is done."""

    stage: str  # extract | gleaning | rewrite | reading | judge
    total: int  # with those whose replies are at hand
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None  # USD; None: the price is unknown
    seconds: float
    role: str = "llm"  # the section of the config that says who is asked


def asking(config, context: Context, done: set[str]) -> tuple[list[Calls], list[str], "Recording"]:
    """The calls of extraction, gleaning and rewriting, of a reader that is not local and of a judge, and what that rests on."""
    c = config.llm
    if c.backend not in llm.BACKENDS:
        raise ValueError(f"llm.backend={c.backend!r}: must be one of {', '.join(llm.BACKENDS)}")
    count, whose = _counter(context.config)
    price = price_of(c.model, tuple(c.price)) if c.backend == "openai" else (0.0, 0.0)
    notes = [f"LLM tokens: counted by {whose}"]
    if c.backend == "openai":
        notes.append(f"price: {c.model} takes ${price[0]:g} for a million tokens in and ${price[1]:g} out; what has to be asked "
                     "again comes on top" if price else f"price: that of {c.model!r} is unknown; {SET_PRICE}")
    recording = Recording.read(count)
    extracting = [] if config.graph.openie else graph.extraction(context)
    rewriting = graph.rewriting(context, None if {"graph", "communities"} <= done else _communities(context))
    asked = {call.item: float(n) for call, n in
             zip((*extracting, *rewriting), count([x.turns[0] for x in (*extracting, *rewriting)], asked=True), strict=True)}
    wanted = {x.item: recording.written * n for x, n in
              zip(extracting, count([x.fields["passage"] for x in extracting]), strict=True)}
    wanted |= {x.item: recording.version * config.graph.rewrites for x in rewriting}
    if "rewrite" not in done and not {"graph", "communities"} <= done:
        between = lambda low, high: low + TOWARDS * (high - low)
        nodes = {size: between(*config.graph[size]) for size in ("large", "small")}
        for call in rewriting:
            asked[call.item] += recording.line * nodes[call.item.rsplit("/", 1)[1]]
        notes.append(f"rewriting: an estimate until the graph exists, with {nodes['large']:.0f} and {nodes['small']:.0f} "
                     f"entities of {recording.line:.0f} tokens in a prompt")
    out, kept = [], list(Replies(context.workdir / "llm" / "replies.jsonl").rows.values())
    for stage, calls in (("extract", extracting), ("rewrite", rewriting)):
        replies = [row for row in kept if row.get("kind") == stage]
        left = [] if stage in done else _unanswered(config, calls, replies)
        ratio, source = _ratio(config, replies, asked, count)
        written = {x.item: min(wanted[x.item] if ratio is None else ratio * asked[x.item], c.max_tokens) for x in calls}
        tokens = [sum(asked[x.item] for x in left), sum(written[x.item] for x in left)]
        took = [row["seconds"] for row in replies if row.get("seconds")]
        pace = statistics.fmean(took) if len(took) >= ENOUGH else tokens[1] / max(len(left), 1) / SPEED
        if left:
            notes.append(f"{stage}: {tokens[1] / tokens[0]:.2f} tokens out for one in, by {source}")
        if left and c.backend == "openai":
            measured = f"as {len(took):,} replies at hand took" if len(took) >= ENOUGH else f"assuming {SPEED:g} tokens/s"
            notes.append(f"{stage}: {pace:.1f} s a reply, {measured}; {c.concurrency} at once")
        rows = [(stage, 1, tokens)]
        if stage == "extract" and config.graph.gleanings:
            passes = config.graph.gleanings
            # The k-th further pass is asked in one conversation with all that was said before.
            before = passes * tokens[0] + passes * (passes + 1) / 2 * tokens[1]
            rows.append(("gleaning", passes, [before, passes * tokens[1]]))
            if left:
                notes.append("gleaning: at most this, if each further pass writes as much as the first")
        for name, times, (read, wrote) in rows:
            cost = (read * price[0] + wrote * price[1]) / 1e6 if price else None if left else 0.0
            out.append(Calls(name, times * len(calls), times * len(left), round(read), round(wrote), cost,
                             _waiting(c, times * len(left), read + wrote, pace)))
    more = _answering(config, context, done, count)
    if any(x.calls for x in more):
        notes.append("reading and judge are at most this: what systems have in common is asked once or not at all")
    return out + more, notes, recording


def _answering(config, context: Context, done: set[str], count: Count) -> list[Calls]:
    """The calls of a reader that is not local and of a judge."""
    versus = 2 * config.judge.repeats * len(config.judge.against)
    reads = config.reader.backend != "local"  # else it is the device's work
    if not (reads or versus):
        return []
    c, chunks = config.evaluate, chunks_of(context)
    questions = answered(questions_of(context, "held_out"), c.read)
    texts = [x.text for some in chunks.values() for x in some]
    passage = statistics.fmean(count(texts[:: -(-len(texts) // 1024)]))
    out = []
    for role, stage, prompt, times, passages, written in (
            ("reader", "reading", "read", len(systems.finding(config)) * reads, c.passages, c.max_new_tokens),
            ("judge", "judge", "judge", versus, 2 * c.passages, VERDICT)):
        if not times:
            continue
        settings, total = llm_settings(config, role), times * len(questions)
        left = 0 if WITHIN.get(stage, stage) in done else total
        each = count([prompts.load(prompt, config.prompts[prompt])])[0] + passages * passage
        price = price_of(settings.model, tuple(settings.price)) if settings.backend == "openai" else (0.0, 0.0)
        cost = left * (each * price[0] + written * price[1]) / 1e6 if price else None if left else 0.0
        out.append(Calls(stage, total, left, round(left * each), left * written, cost,
                         _waiting(settings, left, left * (each + written), written / SPEED), role))
    return out


def _communities(context: Context) -> list[dict]:
    """What the communities stage will name, but for the entities."""
    return [{"question": q.id, "size": size, "nodes": []} for q in questions_of(context, "train") for size in ("large", "small")]


def _waiting(c, calls: int, tokens: float, pace: float) -> float:
    """Seconds of calls to an endpoint: held back by requests at once, or by requests or tokens a minute."""
    if c.backend != "openai":
        return 0.0
    limits = ((calls, c.requests_per_minute), (tokens, c.tokens_per_minute))
    return max(math.ceil(calls / c.concurrency) * pace, *(60 * n / most if most else 0.0 for n, most in limits))


def _counter(config) -> tuple[Count, str]:
    """Who counts an LLM's tokens, and the words for it."""
    from ark_jax.text.tokens import load_tokenizer

    local = config.llm.backend == "local"
    path = (config.llm.path if local else "") or config.generator.path
    tokenizer = load_tokenizer(path)
    chat = local and tokenizer.chat_template
    turn = lambda text: tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                                      tokenize=False, enable_thinking=False)

    def count(texts: Sequence[str], *, asked: bool = False) -> list[int]:
        texts = [turn(text) for text in texts] if asked and chat else texts
        special = bool(asked and local and not chat)
        return [len(row) for at in range(0, len(texts), 1024)
                for row in tokenizer(texts[at : at + 1024], add_special_tokens=special)["input_ids"]]

    return count, f"the tokenizer of {Path(path).name}" + ("" if local else " (generator.path), in place of the LLM's own")


def _unanswered(config, calls: Sequence[llm.Call], replies: Sequence[dict]) -> list[llm.Call]:
    """Calls without a reply at hand; of a replay, all."""
    if config.llm.backend == "replay":
        return list(calls)
    settings = llm_settings(config)
    known = {row["key"] for row in replies}
    return [call for call in calls if settings.key(call.turns) not in known]


def _ratio(config, replies: Sequence[dict], asked: dict[str, float], count: Count) -> tuple[float | None, str]:
    """Tokens out for one in, and who says so; None leaves it to the recording."""
    if config.llm.output_ratio:
        return config.llm.output_ratio, "config.llm.output_ratio"
    told = [row["reply"].get("usage") or {} for row in replies]
    pairs = [(x["prompt_tokens"], x["completion_tokens"]) for x in told if x.get("prompt_tokens") and x.get("completion_tokens")]
    if len(pairs) < ENOUGH:
        known = [row for row in replies if row["item"] in asked]
        pairs = list(zip([asked[row["item"]] for row in known], count([text_of(row["reply"]) for row in known]), strict=True))
    if len(pairs) < ENOUGH:
        return None, "the recording in the package"
    return sum(out for _, out in pairs) / sum(n for n, _ in pairs), f"{len(pairs):,} replies at hand"


@dataclasses.dataclass(frozen=True)
class Recording:
    """What the packaged replies show, in tokens."""

    written: float  # for one token of a passage
    entities: float  # found in one token of a passage
    line: float  # of an entity in a prompt for rewriting
    version: float  # of a rewritten question in its reply

    @classmethod
    def read(cls, count: Count) -> "Recording":
        from ark_jax.graph.extract import parse
        from ark_jax.text.rewrite import parse as versions

        folder = Path(str(importlib.resources.files("ark_jax.embedded")))
        replies: dict[str, dict[str, str]] = {"extract": {}, "rewrite": {}}
        for row in Replies(folder / "replies.jsonl").rows.values():
            kind, _, item = row.get("item", "").partition("/")
            if kind in replies:  # a workdir's replies hold other kinds too
                replies[kind][item] = text_of(row["reply"])
        read = {item.split("#")[0] for item in replies["extract"]}
        passages = REPEATED * sum(count([x["text"] for x in read_rows(folder / "documents.jsonl") if x["id"] in read]))
        found = [e for item, text in replies["extract"].items() for e in parse(text, item)[0]]
        tokens = {kind: sum(count(list(texts.values()))) for kind, texts in replies.items()}
        return cls(tokens["extract"] / passages, len(found) / passages,
                   statistics.fmean(count([f"- {e.name} ({e.type}): {e.description}\n" for e in found])),
                   tokens["rewrite"] / sum(len(versions(text)) for text in replies["rewrite"].values()))
