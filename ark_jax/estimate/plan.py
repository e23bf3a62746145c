"""`ark-jax plan`: what a run will ask, cost, take and fill, told before anything is spent.

The stages that only read the input run in a temporary folder; the recipe foresees the rest. No
weight is read, no endpoint asked, and nothing is written to the workdir.
"""

import dataclasses
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ark_jax.estimate.llm_calls import SET_PRICE, Calls
from ark_jax.pipeline import named
from ark_jax.pipeline.recipe import Recipe
from ark_jax.pipeline.stage import Context
from ark_jax.pipeline.status import examine
from ark_jax.runtime import storage
from ark_jax.runtime.log import Metrics, duration


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What is still to do.

    Attributes:
        inputs: what the input holds -> how many.
        stages: all stages of the config.
        done: those that are up to date.
        computed: of these, the ones that compute on devices.
        work: `device_work.Work` of each stage.
        disk: what is stored -> bytes; checkpoints at their most.
    """

    inputs: dict[str, int]
    stages: tuple[str, ...]
    done: tuple[str, ...]
    computed: tuple[str, ...]
    calls: tuple[Calls, ...]
    work: tuple
    disk: dict[str, int]
    notes: tuple[str, ...]

    @property
    def cost(self) -> float | None:
        """USD; None if a price is unknown."""
        if any(x.cost is None for x in self.calls):
            return None
        return sum(x.cost for x in self.calls)

    @property
    def seconds(self) -> float:
        return sum(x.seconds for x in (*self.calls, *self.work))


def estimate(recipe: Recipe, config, workdir: Path | None = None) -> Estimate:
    """What `ark-jax run` has still to do, given what `workdir` holds, which is only read.

    Published sizes stand in for a well-known model that is not on this machine.

    Raises:
        ValueError: input that a run would refuse, or another model that is not on this machine.
    """
    recipe.check(config)
    with tempfile.TemporaryDirectory() as scratch:
        local, remarks = _with_local_models(recipe, config, Path(scratch))
        with _shadow(recipe, config, local, workdir) as (context, done):
            calls, notes = recipe.llm_calls(context, done)
            calls = [_timed_locally(x, config, local) for x in calls]
            foreseen = recipe.forecast(context, done)
            stages = recipe.stages(config)
            finished = [stage for stage in stages if stage.name in done]
            return Estimate(
                inputs=dict(foreseen.inputs),
                stages=tuple(stage.name for stage in stages),
                done=tuple(stage.name for stage in finished),
                computed=tuple(stage.name for stage in finished if not stage.alone),
                calls=tuple(calls),
                work=tuple(foreseen.work),
                disk=dict(foreseen.disk),
                notes=(*remarks, *notes, *foreseen.notes),
            )


def _with_local_models(recipe: Recipe, config, scratch: Path):
    """A copy of the config that names folders on this machine, and remarks on those in `scratch`.

    Of a well-known model that is not here, `scratch` gets the sizes and a stand-in tokenizer.
    """
    from ark_jax.estimate import known_models

    local = config.copy_and_resolve_references()
    tokenizer = None
    missing = []
    for field, path in named.paths(recipe, config, "model").items():
        section, _, name = field.partition(".")
        if name != "path":
            continue
        if known_models.known_model(path) and _is_missing(path):
            tokenizer = tokenizer or known_models.learn_tokenizer(_sample(recipe, config))
            folder = known_models.write_stand_in(path, tokenizer, scratch)
            missing.append(path)
        else:
            folder = _on_this_machine(path, field)
        local[section].path = str(folder)
    remarks = [
        f"{path} is not on this machine: planned from its published sizes, with a stand-in for its "
        f"tokenizer of about {known_models.CHARACTERS} characters a token"
        for path in dict.fromkeys(missing)
    ]
    return local, remarks


def _sample(recipe: Recipe, config) -> list[str]:
    """Texts of the input; none if it cannot be read, which its stage reports."""
    try:
        return recipe.look(config)[1]
    except (ValueError, OSError):
        return []


def _is_missing(name: str) -> bool:
    """Whether a hub name is in no cache of this machine."""
    if not storage.is_hub_name(name):
        return False
    try:
        storage.hub_model(name, download=False)
    except FileNotFoundError:
        return True
    return False


def _timed_locally(calls: Calls, config, local) -> Calls:
    """With the seconds that a model on this machine takes, if one replies."""
    if not calls.calls or config[calls.role].backend != "local":
        return calls
    from ark_jax.estimate.device_work import WeightlessModel

    settings = local.generator
    model = WeightlessModel.from_folder(
        local[calls.role].path or settings.path,
        compute=settings.dtype,
        batch=settings.batch_tokens,
        head=True,
    )
    each_read, each_written = calls.input_tokens / calls.calls, calls.output_tokens / calls.calls
    work = model.generation(calls.stage, calls.calls, each_read, each_written)
    return dataclasses.replace(calls, seconds=work.seconds)


def check_cost(recipe: Recipe, config, workdir: Path, verb: str = "run") -> None:
    """Refuses to begin calls to an endpoint that would cost more than `llm.max_cost`.

    Args:
        verb: what is about to run: all, or one stage.

    Raises:
        ValueError: the cost is too high, or the price is unknown.
    """
    roles = named.roles(recipe, config)
    if not any(config[role].backend == "openai" for role in roles) or not config.llm.max_cost:
        return
    limit = config.llm.max_cost
    with _shadow(recipe, config, config, workdir) as (context, done):
        calls, _ = recipe.llm_calls(context, done)
    pending = [x for x in calls if x.calls and verb in ("run", "demo", x.stage)]
    for x in pending:
        if x.cost is None:
            raise ValueError(
                f"llm.max_cost is {money(limit)}, but the price of {config[x.role].model!r} is "
                f"unknown: {SET_PRICE.replace('llm', x.role)}"
            )
    total = sum(x.cost for x in pending)
    if total > limit:
        raise ValueError(
            f"the {sum(x.calls for x in pending):,} calls still to be made would cost about "
            f"{money(total)}, more than the {money(limit)} of llm.max_cost: raise it with "
            "--max-cost=USD, or see `ark-jax plan`"
        )


def _on_this_machine(name: str, field: str) -> Path:
    """The folder of a model; a plan downloads nothing."""
    from ark_jax.models import hf

    if not storage.is_hub_name(name):
        return hf.resolve(name)  # or what is wrong with the name
    if _is_missing(name):
        raise ValueError(
            f"{field}={name!r} is not on this machine, and a plan downloads nothing: fetch it "
            f"with `hf download {name}`, or give a folder as --config.{field}"
        )
    return storage.hub_model(name, download=False)


@contextmanager
def _shadow(
    recipe: Recipe, config, local, workdir: Path | None
) -> Iterator[tuple[Context, set[str]]]:
    """A temporary workdir: links to what `workdir` holds, and the prepared stages run.

    Args:
        local: the config that prepared stages run with.
    """
    stages = recipe.stages(config)
    done = set()
    if workdir:
        done = {s.stage for s in examine(stages, config, workdir) if s.state == "done"}
    with tempfile.TemporaryDirectory() as name:
        context = Context(local, Path(name), Metrics(Path(name) / "metrics.jsonl"))
        for folder in (*done, "llm", "vectors"):
            if workdir and (workdir / folder).is_dir():
                (context / folder).symlink_to(workdir.absolute() / folder)
        for stage in stages:
            if stage.name in recipe.prepared and stage.name not in done:
                (context / stage.name).mkdir()
                stage.run(context, context / stage.name)
        yield context, done


def human(n: float, unit: str = "") -> str:
    """`1234567` -> "1.2 M"; with unit "B" in powers of 1024."""
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    step, names = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit == "B" else (1000, prefixes)
    size = 0
    while n >= step - 0.5 and size < len(names) - 1:
        n, size = n / step, size + 1
    digits = 1 if size and n < 99.95 else 0
    return f"{n:,.{digits}f} {names[size]}{unit}".rstrip()


def money(usd: float | None) -> str:
    if usd is None:
        return "unknown"
    if not usd:
        return "$0"
    return f"${usd:,.2f}" if usd >= 0.01 else f"${usd:.4f}"


def format_plan(plan: Estimate) -> str:
    """The estimate for a terminal."""
    inputs = ", ".join(f"{count:,} {name}" for name, count in plan.inputs.items())
    lines = [inputs, ""] if inputs else []
    if plan.calls:
        lines += [_line("LLM", "calls", "tokens in", "tokens out", "cost", "time")]
        lines += [*(_call_line(x, x.stage in plan.done) for x in plan.calls), ""]
    if plan.work or plan.calls:
        lines += [_line("device", "work", "tokens", "FLOPs", "", "time")]
        for x in plan.work:
            amounts = human(x.tokens), human(x.flops), "", duration(x.seconds)
            lines.append(_line(x.stage, x.kind, *amounts))
        asking = {x.stage for x in plan.calls}
        lines += [_line(name, "done") for name in plan.computed if name not in asking]
    else:
        pending = [name for name in plan.stages if name not in plan.done]
        lines.append(f"stages to run: {', '.join(pending) or 'none'}")
    disk = ", ".join(f"{name} {human(n, 'B')}" for name, n in plan.disk.items() if n)
    lines += ["", f"{'disk':<10}{disk or 'nothing more'}", ""]
    lines += [f"- {note}" for note in plan.notes]
    total = human(sum(plan.disk.values()), "B")
    lines += ["", f"total: {money(plan.cost)}, about {duration(plan.seconds)}, {total} of disk"]
    return "\n".join(lines)


def _line(stage: str, kind: str, *cells: str) -> str:
    return (f"{stage:<11} {kind:<12}" + "".join(f"{cell:>13}" for cell in cells)).rstrip()


def _call_line(calls: Calls, done: bool) -> str:
    if done:
        return _line(calls.label, "done")
    pending = f"{calls.calls:,}"
    if calls.calls < calls.total:
        pending += f" of {calls.total:,}"
    tokens = human(calls.input_tokens), human(calls.output_tokens)
    return _line(calls.label, pending, *tokens, money(calls.cost), duration(calls.seconds))
