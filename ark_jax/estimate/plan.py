"""`ark-jax plan`: calls, cost, time, memory and disk of a run, before anything is spent.

The stages that only read the input run in a temporary folder; the recipe counts the rest. No
weight is read, no endpoint asked, and nothing is written to the workdir.
"""

import collections
import dataclasses
import functools
import tempfile
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ark_jax.estimate.work import CHARACTERS, ENDPOINT_SPEED, Work, known_model, write_stand_in
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.runtime import storage
from ark_jax.runtime.accelerator import assumed_device
from ark_jax.runtime.log import Metrics, duration
from ark_jax.train.config import MOMENTS

if typing.TYPE_CHECKING:  # it starts jax
    from ark_jax.estimate.targets import Target

ENCODERS = (
    "retriever",
    "reranker",
    "score",
)  # sections of models that are computed as the retriever is
KEPT = 3  # checkpoints at once, the last being written; each has weights and AdamW's moments
FEW_UPDATES = 10  # of a training stage
HELD = ("embedding", "likelihoods")  # work whose memory is predicted, beside training


@dataclasses.dataclass(frozen=True)
class Cost:
    """FLOPs and seconds of one part of the work. Calls to an endpoint have no FLOPs."""

    work: Work
    flops: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a run has still to do.

    Attributes:
        inputs: kind of item in the input -> how many.
        stages: names of all stages of the config.
        done: names of the stages that are up to date.
        costs: the cost of each part of the work that is left.
        disk: kind of file -> bytes; of checkpoints, the most at one time.
        notes: sentences that explain the figures.
    """

    inputs: dict[str, int]
    stages: tuple[str, ...]
    done: tuple[str, ...]
    costs: tuple[Cost, ...]
    disk: dict[str, float]
    notes: tuple[str, ...]

    @property
    def calls(self) -> list[Work]:
        """The work that asks a language model."""
        return [x.work for x in self.costs if x.work.kind == "ask"]

    @property
    def cost(self) -> float | None:
        """USD; None if a price is unknown."""
        costs = [x.cost for x in self.calls]
        return None if None in costs else sum(costs)

    @property
    def seconds(self) -> float:
        """Seconds of all work."""
        return sum(x.seconds for x in self.costs)


def estimate(
    recipe: Recipe,
    config,
    workdir: Path | None = None,
    target: "Target | None" = None,
    *,
    verify: bool = False,
) -> Estimate:
    """What `ark-jax run` has still to do, given what `workdir` holds, which is only read.

    Published sizes stand in for a well-known model that is not on this machine.

    Args:
        target: the devices of the run; None: those of this machine.
        verify: also compiles training steps for the target, which takes minutes.

    Raises:
        ValueError: input that a run would refuse, or another model that is not on this machine.
    """
    recipe.check(config)
    with tempfile.TemporaryDirectory() as scratch:
        local, remarks = _with_local_models(recipe, config, Path(scratch))
        with _scratch_workdir(recipe, config, local, workdir) as (context, done):
            forecast = recipe.forecast(context, done)
            costs, disk, notes = _costs(context, forecast.work, done, target, verify)
    names = tuple(stage.name for stage in recipe.stages(config))
    return Estimate(
        inputs=dict(forecast.inputs),
        stages=names,
        done=tuple(name for name in names if name in done),
        costs=tuple(costs),
        disk={**forecast.disk, **disk},
        notes=(*remarks, *_call_notes(costs), *notes, *forecast.notes),
    )


def _costs(
    context: Context, work: Sequence[Work], done: set[str], target: "Target | None", verify: bool
) -> tuple[list[Cost], dict[str, float], list[str]]:
    """The cost of the work that is left, bytes by kind of file, and notes on devices."""
    left = [x for x in work if x.stage not in done and (x.items or x.total)]
    if all(x.is_remote for x in work):
        return [Cost(x, 0, x.waiting) for x in left], {}, []  # without starting jax
    if target is None:
        context.enter_mesh()
        return _device_costs(context, work, left, done)
    from ark_jax.estimate import targets

    enter = targets.compiling_for if verify else targets.assumed
    with enter(target, context.config.mesh):
        return _device_costs(context, work, left, done, verify)


def _device_costs(
    context: Context,
    work: Sequence[Work],
    left: Sequence[Work],
    done: set[str],
    verify: bool = False,
) -> tuple[list[Cost], dict[str, float], list[str]]:
    """`_costs` on the mesh that is set; `left` is the part of `work` that is not done."""
    from ark_jax.estimate.devices import WeightlessModel
    from ark_jax.models import sentence_folder

    config, costs, speeds = context.config, [], {}
    memory: dict[str, dict[str, None]] = collections.defaultdict(dict)  # sentence -> stages
    disk: dict[str, float] = collections.defaultdict(float)

    @functools.cache
    def model_of(role: str) -> WeightlessModel:
        head, path = role not in ENCODERS, config[role].path or config.generator.path
        kind = config.generator.dtype if head else config.retriever.compute
        batch = config["generator" if head else "retriever"].batch_tokens
        return WeightlessModel.from_folder(path, compute=kind, batch=batch, head=head)

    def model_bytes(x: Work) -> int:
        """Bytes of the models that it trains, which stages store in float32."""
        return x.towers * 4 * model_of(x.model).parameters

    def export_bytes(x: Work) -> int:
        """Bytes of those that it exports: encoders in the types of their base."""
        return x.towers * model_of(x.model).bytes if x.model in ENCODERS else model_bytes(x)

    for x in left:
        if x.is_remote:
            costs.append(Cost(x, 0, x.waiting))
            continue
        model = model_of(x.model)
        speeds[model.describe_speed()] = None
        if x.stored:
            files = sentence_folder.read_models(Path(config.retriever.path))["document"]
            disk["vectors"] += 4 * sentence_folder.read_width(files) * x.stored
        if x.kind != "training":
            costs.append(Cost(x, *model.inference(x)))
            if assumed_device() and x.kind in HELD:
                memory[model.describe_held(x)][f"{x.stage} ({x.kind})"] = None
            continue
        choice = model.choose(config.train, x)
        costs.append(Cost(x, *model.training(x, choice)))
        text = choice.describe()
        is_new = text not in memory
        memory[text][x.stage] = None
        if verify and is_new:
            memory[model.verify(config.train, x, choice)][x.stage] = None
        numbers = (1 + MOMENTS[config.train.moments]) * x.towers * model.trainable(config.train)
        kept = 4 * numbers * min(x.items // config.train.save_every, KEPT)
        disk["models"] += model_bytes(x)
        disk["checkpoints"] = max(disk["checkpoints"], kept)
    if "export" not in done:
        trained = {x.model: x for x in work if x.kind == "training" and x.model != "reader"}
        disk["export"] = sum(map(export_bytes, trained.values()))
    return costs, disk, _device_notes(left, list(speeds), memory)


def _device_notes(
    left: Sequence[Work], speeds: Sequence[str], memory: Mapping[str, Collection[str]]
) -> list[str]:
    """Notes on the speed of devices, memory, and the number of updates."""
    notes = [
        f"device: {' and '.join(speeds)}; times leave out compiling, searching, saving, "
        "the host's work, other retrievers and rerankers, and what devices exchange"
    ] * bool(speeds)
    notes += [f"memory of {', '.join(names)}: {text}" for text, names in memory.items()]
    if updates := {x.stage: x.items for x in left if x.kind == "training"}:
        counts = ", ".join(f"{steps:,.0f} in {name}" for name, steps in updates.items())
        remark = "; so few hardly change a model" * (min(updates.values()) < FEW_UPDATES)
        notes.append(f"updates of the weights: {counts}{remark}")
    return notes


def _call_notes(costs: Sequence[Cost]) -> list[str]:
    """Notes on price and time of the calls to an endpoint; kinds of call may share one."""
    labels: dict[str, dict[str, None]] = {}
    for x in (cost.work for cost in costs):
        if x.kind != "ask" or not x.items or x.settings.backend != "openai":
            continue
        price = _unknown_price(x)
        if x.price:
            price = f"${x.price[0]:g} for a million tokens in, ${x.price[1]:g} out"
        pace = "as cached replies took" if x.pace else f"assuming {ENDPOINT_SPEED:g} tokens/s"
        note = (
            f"{price}; {x.reply_seconds:.1f} s a reply, {pace}, "
            f"{x.settings.concurrency} at once; requests that are repeated cost extra"
        )
        labels.setdefault(note, {})[x.label] = None
    return [f"{', '.join(names)}: {note}" for note, names in labels.items()]


def _unknown_price(work: Work) -> str:
    return (
        f"the price of {work.settings.model!r} is unknown: give USD of a million tokens in and "
        f"out, as in --config.{work.model}.price='(0.3,2.5)'"
    )


def _with_local_models(recipe: Recipe, config, scratch: Path) -> tuple:
    """A copy of the config that names folders on this machine, and remarks on stand-ins.

    A well-known model that is not here gets a folder in `scratch`, with its sizes and a stand-in
    for its tokenizer.
    """
    from ark_jax.models import hf

    local, missing = config.copy_and_resolve_references(), {}
    for field, name in recipe.paths(config, "model").items():
        section, _, leaf = field.partition(".")
        if leaf != "path":
            continue
        try:
            is_hub = storage.is_hub_name(name)
            folder = storage.hub_model(name, download=False) if is_hub else hf.resolve(name)
        except FileNotFoundError:
            if not is_hub:
                raise
            if not known_model(name):
                raise ValueError(
                    f"{field}={name!r} is not on this machine, and a plan downloads nothing: fetch "
                    f"it with `hf download {name}`, or give a folder as --config.{field}"
                ) from None
            folder, missing[name] = write_stand_in(name, scratch), None
        local[section].path = str(folder)
    return local, [
        f"{name} is not on this machine: planned from its published sizes, with a stand-in for its "
        f"tokenizer of about {CHARACTERS} characters a token"
        for name in missing
    ]


def check_cost(recipe: Recipe, config, workdir: Path, verb: str = "run") -> None:
    """Refuses to begin calls to an endpoint that would cost more than `llm.max_cost`.

    Args:
        verb: "run" or "demo" for all stages, or the one stage that is about to run.

    Raises:
        ValueError: the cost is too high, or the price is unknown.
    """
    roles = recipe.roles(config)
    limit = config.llm.max_cost if "llm" in config else 0.0
    if not any(config[role].backend == "openai" for role in roles) or not limit:
        return
    with _scratch_workdir(recipe, config, config, workdir) as (context, done):
        forecast = recipe.forecast(context, done)
    calls = [x for x in forecast.work if x.kind == "ask" and x.items and x.stage not in done]
    pending = [x for x in calls if verb in ("run", "demo", x.stage)]
    for x in pending:
        if x.cost is None:
            raise ValueError(f"llm.max_cost is {format_usd(limit)}, but {_unknown_price(x)}")
    total = sum(x.cost for x in pending)
    if total > limit:
        raise ValueError(
            f"the {sum(x.items for x in pending):,} calls still to be made would cost about "
            f"{format_usd(total)}, more than the {format_usd(limit)} of llm.max_cost: raise it "
            "with --max-cost=USD, or see `ark-jax plan`"
        )


@contextmanager
def _scratch_workdir(
    recipe: Recipe, config, local, workdir: Path | None
) -> Iterator[tuple[Context, set[str]]]:
    """A temporary workdir with links to finished stages, where the prepared stages have run.

    Yields its context and the names of the finished stages.
    """
    stages = recipe.stages(config)
    done = set()
    if workdir:
        done = {s.stage for s in examine(stages, config, workdir) if s.state == "done"}
    with tempfile.TemporaryDirectory() as name:
        context = Context(local, Path(name), Metrics(Path(name) / "metrics.jsonl"))
        for folder in (*done, "llm"):
            if workdir and (workdir / folder).is_dir():
                (context / folder).symlink_to(workdir.absolute() / folder)
        for stage in stages:
            if stage.name in recipe.prepared and stage.name not in done:
                (context / stage.name).mkdir()
                stage.run(context, context / stage.name)
        yield context, done


def format_amount(n: float, unit: str = "") -> str:
    """`1234567` -> "1.2 M"; with unit "B" in powers of 1024."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    step, names = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit == "B" else (1000, prefixes)
    size = 0
    while n >= step - 0.5 and size < len(names) - 1:
        n, size = n / step, size + 1
    digits = 1 if size and n < 99.95 else 0
    return f"{n:,.{digits}f} {names[size]}{unit}".rstrip()


def format_usd(usd: float | None) -> str:
    """ "$1.20"; None is "unknown"."""
    if not usd:
        return "unknown" if usd is None else "$0"
    return f"${usd:,.2f}" if usd >= 0.01 else f"${usd:.4f}"


def format_plan(plan: Estimate) -> str:
    """The estimate for a terminal; work of one stage and kind makes one line."""
    inputs = ", ".join(f"{count:,} {name}" for name, count in plan.inputs.items())
    lines = [inputs, ""] if inputs else []
    pending = [name for name in plan.stages if name not in plan.done]
    lines += [f"stages to run: {', '.join(pending) or 'none'}", ""]
    calls = _call_rows([cost for cost in plan.costs if cost.work.kind == "ask"])
    if calls:
        head = _table_row("LLM", "calls", "tokens in", "tokens out", "cost", "time")
        lines += [head, *calls]
    work = _device_rows([cost for cost in plan.costs if cost.work.kind != "ask"])
    if work:
        head = _table_row("device", "work", "tokens", "FLOPs", "", "time")
        lines += [*([""] if calls else []), head, *work]
    disk = ", ".join(f"{name} {format_amount(n, 'B')}" for name, n in plan.disk.items() if n)
    lines += ["", f"{'disk':<10}{disk or 'nothing more'}", ""]
    lines += [f"- {note}" for note in plan.notes]
    cost, time = format_usd(plan.cost), duration(plan.seconds)
    total = format_amount(sum(plan.disk.values()), "B")
    lines += ["", f"total: {cost}, about {time}, {total} of disk"]
    return "\n".join(lines)


def _call_rows(costs: Sequence[Cost]) -> list[str]:
    by_label: dict[str, list[Cost]] = {}
    for cost in costs:
        by_label.setdefault(cost.work.label, []).append(cost)
    rows = []
    for label, alike in by_label.items():
        works = [cost.work for cost in alike]
        items, total = sum(x.items for x in works), sum(x.total for x in works)
        calls = f"{items:,}" + f" of {total:,}" * (items < total)
        tokens = (sum(x.items * x.read for x in works), sum(x.items * x.written for x in works))
        prices = [x.cost for x in works]
        usd = format_usd(None if None in prices else sum(prices))
        seconds = duration(sum(cost.seconds for cost in alike))
        rows.append(_table_row(label, calls, *map(format_amount, tokens), usd, seconds))
    return rows


def _device_rows(costs: Sequence[Cost]) -> list[str]:
    """The lines of work on the devices, summed by stage and kind."""
    sums: dict[tuple[str, str], list[float]] = {}
    for cost in costs:
        amounts = sums.setdefault((cost.work.stage, cost.work.kind), [0, 0, 0])
        for i, amount in enumerate((cost.work.tokens, cost.flops, cost.seconds)):
            amounts[i] += amount
    return [
        _table_row(*names, format_amount(tokens), format_amount(flops), "", duration(seconds))
        for names, (tokens, flops, seconds) in sums.items()
    ]


def _table_row(stage: str, kind: str, first: str, *cells: str) -> str:
    """A line of the table, with columns of fixed width; a long name takes room of the first one."""
    left = f"{stage:<11} {kind}"
    return "".join([left, first.rjust(37 - len(left)), *(f"{x:>13}" for x in cells)]).rstrip()
