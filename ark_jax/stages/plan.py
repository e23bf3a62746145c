"""`ark-jax plan`: what a run will ask, cost, take and fill, told before anything is spent.

The data stage runs into a temporary folder, the calls are made up as the stages make them up, and `stages.work` sizes what is
computed. No weight is read, no endpoint asked, nothing written beside what is there.
"""

import dataclasses
import importlib.resources
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ark_jax import pipeline
from ark_jax.log import Metrics, duration, read_rows
from ark_jax.pipeline import Context
from ark_jax.stages import graph, stages
from ark_jax.stages.files import chunks_of, identity, load_rows, questions_of
from ark_jax.text import llm, prompts
from ark_jax.text.cost import price_of

ENOUGH = 20  # replies of a kind at hand to measure on; with fewer, the packaged recording speaks
SPEED = 60.0  # tokens a second in which an endpoint writes a reply, where no replies at hand say
TOWARDS = 0.25  # how far a community goes from its least to its most entities; in the demo 0.22 for large, 0.36 for small
REPEATED = 160 / 144  # of each of the recording's passages of 160 tokens, 16 are also the one before's
SET_PRICE = "give USD of a million tokens in and out, as in --config.llm.price='(0.3,2.5)'"

Count = Callable[..., list[int]]  # tokens of texts; with asked=True in the form in which a model is asked


@dataclasses.dataclass(frozen=True)
class Calls:
    """What one kind of calls is still to ask: nothing once its stage is done."""

    stage: str  # extract | gleaning | rewrite
    total: int  # with those whose replies are at hand
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None  # USD; None: the price is unknown
    seconds: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What is still to do; `disk` in bytes, checkpoints at their most."""

    documents: int
    chunks: int
    train_questions: int
    held_out_questions: int
    done: tuple[str, ...]
    calls: tuple[Calls, ...]
    work: tuple  # of stages.work.Work
    disk: dict[str, int]
    notes: tuple[str, ...]

    @property
    def cost(self) -> float | None:
        """USD; None if a price is unknown."""
        return None if any(x.cost is None for x in self.calls) else sum(x.cost for x in self.calls)

    @property
    def seconds(self) -> float:
        return sum(x.seconds for x in (*self.calls, *self.work))


def estimate(config, workdir: Path | None = None) -> Estimate:
    """What `ark-jax run` has still to do, given what `workdir` holds, which is only read.

    Raises:
        ValueError: input that a run would refuse, or a model that is not on this machine.
    """
    local = config.copy_and_resolve_references()
    for role in ("retriever", "generator", *(["llm"] if config.llm.backend == "local" and config.llm.path else [])):
        local[role].path = str(_on_this_machine(config[role].path, f"{role}.path"))
    with _shadow(config, local, workdir) as (context, done):
        from ark_jax.stages.work import Model, computing

        calls, notes, recording = _asking(config, context, done)
        work, disk, more = computing(context, done, entities=recording.entities, line=recording.line, version=recording.version)
        if config.llm.backend == "local":
            writer = Model.of(local.llm.path or local.generator.path, compute=local.generator.dtype,
                              batch=local.generator.batch_tokens, head=True)
            made = [writer.generation(x.stage, x.calls, x.input_tokens / x.calls, x.output_tokens / x.calls) if x.calls else None
                    for x in calls]
            calls = [dataclasses.replace(x, seconds=y.seconds) if y else x for x, y in zip(calls, made, strict=True)]
        return Estimate(
            documents=len(load_rows(context / "data" / "documents.parquet")), chunks=sum(map(len, chunks_of(context).values())),
            train_questions=len(questions_of(context, "train")), held_out_questions=len(questions_of(context, "held_out")),
            done=tuple(s.name for s in stages(config) if s.name in done), calls=tuple(calls), work=tuple(work), disk=disk,
            notes=(*notes, *more))


def check_cost(config, workdir: Path, verb: str = "run") -> None:
    """Refuses to begin calls to an endpoint that would cost more than `llm.max_cost`.

    Args:
        verb: what is about to run: all, or the stage extract or rewrite.

    Raises:
        ValueError: the cost is too high, or cannot be told.
    """
    limit = config.llm.max_cost
    if limit < 0:
        raise ValueError(f"llm.max_cost={limit}: must be USD, at least 0; 0 sets no limit")
    if config.llm.backend != "openai" or not limit or verb not in ("run", "demo", "extract", "rewrite"):
        return
    with _shadow(config, config, workdir) as (context, done):
        calls, _, _ = _asking(config, context, done)
    asked = [x for x in calls if x.calls and {"extract": x.stage != "rewrite", "rewrite": x.stage == "rewrite"}.get(verb, True)]
    if any(x.cost is None for x in asked):
        raise ValueError(f"llm.max_cost is {money(limit)}, but the price of {config.llm.model!r} is unknown: {SET_PRICE}")
    total = sum(x.cost for x in asked)
    if total > limit:
        raise ValueError(f"the {sum(x.calls for x in asked):,} calls still to be made would cost about {money(total)}, more than "
                         f"the {money(limit)} of llm.max_cost: raise it with --max-cost=USD, or see `ark-jax plan`")


def _on_this_machine(name: str, field: str) -> Path:
    """The folder of a model; a plan downloads nothing."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    from ark_jax.models import hf

    if Path(name).expanduser().is_dir() or name.startswith((".", "~", "/")) or name.count("/") != 1:
        return hf.resolve(name)  # or what is wrong with the name
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        raise ValueError(f"{field}={name!r} is not on this machine, and a plan downloads nothing: fetch it with "
                         f"`hf download {name}`, or give a folder as --config.{field}") from None


@contextmanager
def _shadow(config, local, workdir: Path | None) -> Iterator[tuple[Context, set[str]]]:
    """What the stages would see: the finished ones of `workdir` and the data stage in any case; and the names of those finished.

    `local` is the config with which the data stage runs, in a folder that lives no longer than this.
    """
    every = stages(config)
    done = {s.stage for s in pipeline.examine(every, config, workdir) if s.state == "done"} if workdir else set()
    with tempfile.TemporaryDirectory() as name:
        context = Context(local, Path(name), Metrics(Path(name) / "metrics.jsonl"))
        for stage in (*done, "llm"):
            if workdir and (workdir / stage).is_dir():
                (context / stage).symlink_to(workdir.absolute() / stage)
        if "data" not in done:
            (context / "data").mkdir()
            graph.data(context, context / "data")
        yield context, done


def _asking(config, context: Context, done: set[str]) -> tuple[list[Calls], list[str], "_Recording"]:
    """The calls of extraction, gleaning and rewriting, and what their numbers rest on."""
    c = config.llm
    if c.backend not in llm.BACKENDS:
        raise ValueError(f"llm.backend={c.backend!r}: must be one of {', '.join(llm.BACKENDS)}")
    count, whose = _counter(context.config)
    price = price_of(c.model, tuple(c.price)) if c.backend == "openai" else (0.0, 0.0)
    notes = [f"LLM tokens: counted by {whose}"]
    if c.backend == "openai":
        notes.append(f"price: {c.model} takes ${price[0]:g} for a million tokens in and ${price[1]:g} out; what has to be asked "
                     "again comes on top" if price else f"price: that of {c.model!r} is unknown; {SET_PRICE}")
    recording = _Recording.read(count)
    extracting, rewriting = _extraction(context), _rewriting(context, done)
    asked = {call.item: float(n) for call, n in
             zip((*extracting, *rewriting), count([x.prompt for x in (*extracting, *rewriting)], asked=True), strict=True)}
    wanted = {x.item: recording.written * n for x, n in
              zip(extracting, count([x.fields["passage"] for x in extracting]), strict=True)}
    wanted |= {x.item: recording.version * config.graph.rewrites for x in rewriting}
    if "rewrite" not in done and not {"graph", "communities"} <= done:
        between = lambda low, high: low + TOWARDS * (high - low)
        nodes = {size: between(*config.graph[size]) for size in ("large", "small")}
        for call in rewriting:
            asked[call.item] += recording.line * nodes[call.fields["size"]]
        notes.append(f"rewriting: an estimate until the graph exists, with {nodes['large']:.0f} and {nodes['small']:.0f} "
                     f"entities of {recording.line:.0f} tokens in a prompt")
    out = []
    for stage, calls in (("extract", extracting), ("rewrite", rewriting)):
        replies = [row for row in llm.complete_rows(context.workdir / "llm" / "replies.jsonl")
                   if str(row.get("item")).startswith(f"{stage}/")]
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
    return out, notes, recording


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
                                                      tokenize=False)

    def count(texts: Sequence[str], *, asked: bool = False) -> list[int]:
        texts = [turn(text) for text in texts] if asked and chat else texts
        special = bool(asked and local and not chat)
        return [len(row) for at in range(0, len(texts), 1024)
                for row in tokenizer(texts[at : at + 1024], add_special_tokens=special)["input_ids"]]

    return count, f"the tokenizer of {Path(path).name}" + ("" if local else " (generator.path), in place of the LLM's own")


def _extraction(context: Context) -> list[llm.Call]:
    """What the extract stage asks."""
    wanted = {d for q in questions_of(context, "train") for d in q.documents}
    template = prompts.load("extract", context.config.prompts.extract)
    return [llm.Call(f"extract/{x.id}", "extract", prompts.fill(template, passage=x.text), {"passage": x.text})
            for document, some in chunks_of(context).items() if document in wanted for x in some]


def _rewriting(context: Context, done: set[str]) -> list[llm.Call]:
    """What the rewrite stage asks; without entities where there are no communities yet."""
    from ark_jax.graph.store import KnowledgeGraph

    questions = {q.id: q for q in questions_of(context, "train")}
    template, count = prompts.load("rewrite", context.config.prompts.rewrite), context.config.graph.rewrites
    rows = [{"question": id, "size": size, "nodes": []} for id in questions for size in ("large", "small")]
    if {"graph", "communities"} <= done:
        made, rows = KnowledgeGraph.load(context / "graph"), load_rows(context / "communities" / "communities.parquet")
    calls = []
    for row in rows:
        q = questions[row["question"]]
        entities = "\n".join(f"- {made.names[i]} ({made.types[i]}): {(made.descriptions[i] or [''])[0]}" for i in row["nodes"])
        filled = prompts.fill(template, question=q.question, answer=q.answers[0], entities=entities, count=count)
        calls.append(llm.Call(f"rewrite/{q.id}/{row['size']}", "rewrite", filled, {"size": row["size"]}))
    return calls


def _unanswered(config, calls: Sequence[llm.Call], replies: Sequence[dict]) -> list[llm.Call]:
    """Calls without a reply at hand; of a replay, all."""
    if config.llm.backend == "replay":
        return list(calls)
    settings = llm.Settings(**{f.name: config.llm[f.name] for f in dataclasses.fields(llm.Settings)})
    if config.llm.backend == "local":
        settings = dataclasses.replace(settings, model=identity(config.llm.path or config.generator.path))
    known = {row["key"] for row in replies}
    return [call for call in calls if settings.key(call) not in known]


def _ratio(config, replies: Sequence[dict], asked: dict[str, float], count: Count) -> tuple[float | None, str]:
    """Tokens out for one in, and who says so; None leaves it to the recording."""
    if config.llm.output_ratio:
        return config.llm.output_ratio, "config.llm.output_ratio"
    told = [row["reply"].get("usage") or {} for row in replies]
    pairs = [(x["prompt_tokens"], x["completion_tokens"]) for x in told if x.get("prompt_tokens") and x.get("completion_tokens")]
    if len(pairs) < ENOUGH:
        known = [row for row in replies if row["item"] in asked]
        pairs = list(zip([asked[row["item"]] for row in known], count([llm.text_of(row["reply"]) for row in known]), strict=True))
    if len(pairs) < ENOUGH:
        return None, "the recording in the package"
    return sum(out for _, out in pairs) / sum(n for n, _ in pairs), f"{len(pairs):,} replies at hand"


@dataclasses.dataclass(frozen=True)
class _Recording:
    """What the packaged replies show, in tokens."""

    written: float  # for one token of a passage
    entities: float  # found in one token of a passage
    line: float  # of an entity in a prompt for rewriting
    version: float  # of a rewritten question in its reply

    @classmethod
    def read(cls, count: Count) -> "_Recording":
        from ark_jax.graph.extract import parse
        from ark_jax.text.rewrite import parse as versions

        folder = Path(str(importlib.resources.files("ark_jax.embedded")))
        replies: dict[str, dict[str, str]] = {"extract": {}, "rewrite": {}}
        for row in llm.complete_rows(folder / "replies.jsonl"):
            kind, item = row["item"].split("/", 1)
            replies[kind][item] = llm.text_of(row["reply"])
        read = {item.split("#")[0] for item in replies["extract"]}
        passages = REPEATED * sum(count([x["text"] for x in read_rows(folder / "documents.jsonl") if x["id"] in read]))
        found = [e for item, text in replies["extract"].items() for e in parse(text, item)[0]]
        tokens = {kind: sum(count(list(texts.values()))) for kind, texts in replies.items()}
        return cls(tokens["extract"] / passages, len(found) / passages,
                   statistics.fmean(count([f"- {e.name} ({e.type}): {e.description}\n" for e in found])),
                   tokens["rewrite"] / sum(len(versions(text)) for text in replies["rewrite"].values()))


def human(n: float, unit: str = "") -> str:
    """`1234567` -> `1.2 M`; with unit "B" in powers of 1024."""
    step, names = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit == "B" else (1000, ("", "k", "M", "G", "T", "P", "E"))
    size = 0
    while n >= step - 0.5 and size < len(names) - 1:
        n, size = n / step, size + 1
    name = f"{names[size]}{unit}"
    return f"{n:,.{1 if size and n < 99.95 else 0}f}" + (f" {name}" if name else "")


def money(usd: float | None) -> str:
    return "unknown" if usd is None else "$0" if not usd else f"${usd:,.2f}" if usd >= 0.01 else f"${usd:.4f}"


def table(found: Estimate) -> str:
    """The estimate for a terminal."""
    head = lambda *names: (f"{names[0]:<10}{names[1]:<13}" + "".join(f"{x:>13}" for x in names[2:])).rstrip()
    done = set(found.done)
    lines = [f"{found.documents:,} documents in {found.chunks:,} chunks; {found.train_questions:,} training and "
             f"{found.held_out_questions:,} held-out questions", "",
             head("LLM", "calls", "tokens in", "tokens out", "cost", "time")]
    for x in found.calls:
        told = f"{x.calls:,}" + (f" of {x.total:,}" if x.calls < x.total else "")
        finished = {"gleaning": "extract"}.get(x.stage, x.stage) in done
        lines.append(head(x.stage, "done") if finished else head(x.stage, told, human(x.input_tokens), human(x.output_tokens),
                                                                 money(x.cost), duration(x.seconds)))
    lines += ["", head("device", "work", "tokens", "FLOPs", "", "time")]
    lines += [head(x.stage, x.what, human(x.tokens), human(x.flops), "", duration(x.seconds)) for x in found.work]
    computed = [name for name in found.done if name.startswith(("graph", "score", "mine", "stage", "evaluate"))]
    lines += [head(name, "done") for name in computed]
    disk = ", ".join(f"{name} {human(n, 'B')}" for name, n in found.disk.items())
    lines += ["", f"{'disk':<10}{disk or 'nothing more'}", ""]
    lines += [f"- {note}" for note in found.notes]
    return "\n".join([*lines, "", f"total: {money(found.cost)}, about {duration(found.seconds)}, "
                                  f"{human(sum(found.disk.values()), 'B')} of disk"])
