"""`ark-jax plan`: what a run will ask, cost, take and fill, told before anything is spent.

The data stage runs into a temporary folder, the calls are made up as the stages make them up, and `stages.computing` sizes what
is computed. No weight is read, no endpoint asked, nothing written beside what is there.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ark_jax import pipeline
from ark_jax.log import Metrics, duration
from ark_jax.pipeline import Context
from ark_jax.stages import graph, stages
from ark_jax.stages.asking import SET_PRICE, WITHIN, Calls, asking
from ark_jax.stages.files import chunks_of, load_rows, questions_of


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
    asked = [role for role in ("llm", "reader", "judge") if config[role].backend == "local" and config[role].path]
    for role in ("retriever", "generator", *asked):
        local[role].path = str(_on_this_machine(config[role].path, f"{role}.path"))
    with _shadow(config, local, workdir) as (context, done):
        from ark_jax.stages.computing import computing
        from ark_jax.stages.work import Model

        calls, notes, recording = asking(config, context, done)
        work, disk, more = computing(context, done, entities=recording.entities, line=recording.line, version=recording.version)
        for i, x in enumerate(calls):
            if x.calls and config[x.role].backend == "local":
                writer = Model.of(local[x.role].path or local.generator.path, compute=local.generator.dtype,
                                  batch=local.generator.batch_tokens, head=True)
                made = writer.generation(x.stage, x.calls, x.input_tokens / x.calls, x.output_tokens / x.calls)
                calls[i] = dataclasses.replace(x, seconds=made.seconds)
        return Estimate(
            documents=len(load_rows(context / "data" / "documents.parquet")), chunks=sum(map(len, chunks_of(context).values())),
            train_questions=len(questions_of(context, "train")), held_out_questions=len(questions_of(context, "held_out")),
            done=tuple(s.name for s in stages(config) if s.name in done), calls=tuple(calls), work=tuple(work), disk=disk,
            notes=(*notes, *more))


def check_cost(config, workdir: Path, verb: str = "run") -> None:
    """Refuses to begin calls to an endpoint that would cost more than `llm.max_cost`.

    Args:
        verb: what is about to run: all, or one stage.

    Raises:
        ValueError: the cost is too high, or cannot be told.
    """
    limit = config.llm.max_cost
    if limit < 0:
        raise ValueError(f"llm.max_cost={limit}: must be USD, at least 0; 0 sets no limit")
    paid = [config[role].backend for role in ("llm", "reader", *(["judge"] if config.judge.repeats else []))]
    if "openai" not in paid or not limit or verb not in ("run", "demo", "extract", "rewrite", "evaluate", "judge"):
        return
    with _shadow(config, config, workdir) as (context, done):
        calls, _, _ = asking(config, context, done)
    asked = [x for x in calls if x.calls and verb in ("run", "demo", WITHIN.get(x.stage, x.stage))]
    for x in asked:
        if x.cost is None:
            raise ValueError(f"llm.max_cost is {money(limit)}, but the price of {config[x.role].model!r} is unknown: "
                             f"{SET_PRICE.replace('llm', x.role)}")
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
        finished = WITHIN.get(x.stage, x.stage) in done
        lines.append(head(x.stage, "done") if finished else head(x.stage, told, human(x.input_tokens), human(x.output_tokens),
                                                                 money(x.cost), duration(x.seconds)))
    lines += ["", head("device", "work", "tokens", "FLOPs", "", "time")]
    lines += [head(x.stage, x.what, human(x.tokens), human(x.flops), "", duration(x.seconds)) for x in found.work]
    computed = [name for name in found.done if name.startswith(("graph", "score", "mine", "stage", "baselines", "evaluate"))]
    lines += [head(name, "done") for name in computed]
    disk = ", ".join(f"{name} {human(n, 'B')}" for name, n in found.disk.items())
    lines += ["", f"{'disk':<10}{disk or 'nothing more'}", ""]
    lines += [f"- {note}" for note in found.notes]
    return "\n".join([*lines, "", f"total: {money(found.cost)}, about {duration(found.seconds)}, "
                                  f"{human(sum(found.disk.values()), 'B')} of disk"])
