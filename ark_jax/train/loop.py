"""One stage of training: state, step, loop. Stopped at any moment it goes on bitwise where it was saved."""

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from ark_jax import hosts, layout, preemption
from ark_jax.data import curriculum
from ark_jax.data.curriculum import Example
from ark_jax.log import Progress, primary, say
from ark_jax.models import lora
from ark_jax.models.retriever import Retriever, embed
from ark_jax.text import tokens as tk
from ark_jax.train import flops, loss, optim
from ark_jax.train.checkpoints import Checkpoints

NON_FINITE = "non_finite.json"


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one stage is trained."""

    epochs: int
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    batch: int
    chunks: int
    temperature: float
    matryoshka: tuple[int, ...]  # narrower widths that are trained too
    denominator: str
    order: str
    save_every: int
    remat: str
    seed: int
    use_negatives: bool
    lora_rank: int  # 0 trains all weights
    lora_alpha: float
    lora_targets: tuple[str, ...]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["step", "trained", "opt"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class State:
    step: jax.Array  # also the position in the data: batches follow from it, on whatever mesh and number of processes
    trained: Any  # the model, or an adapter beside it
    opt: optax.OptState


@dataclasses.dataclass(frozen=True)
class Objective:
    """What decides the compiled step: equal objectives and shapes compile once, whatever stage they serve."""

    cfg: Any
    pooling: str
    width: int
    chunks: int
    rooms: tuple[int | None, int | None]  # of the models, for questions and for a piece of the passages
    temperature: float
    weight_decay: float
    clip: float
    matryoshka: tuple[int, ...]

    def optimizer(self) -> optax.GradientTransformation:
        return optim.adamw(weight_decay=self.weight_decay, clip=self.clip)

    def start(self, trained) -> State:
        return State(jnp.zeros((), jnp.int32), trained, self.optimizer().init(trained))

    def loss(self, model, batch) -> jax.Array:
        encode = lambda room: functools.partial(embed, model, self.cfg, self.pooling, self.width, room)
        queries = encode(self.rooms[0])(*batch["queries"])
        passages = loss.in_chunks(encode(self.rooms[1]), self.chunks)(*batch["passages"])
        return loss.matryoshka(queries, passages, batch["positive"], batch["negative"], widths=self.matryoshka,
                               temperature=self.temperature)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def train_step(objective: Objective, state: State, frozen, batch, learning_rate) -> tuple[State, dict]:
    """One update; `state` is consumed. An adapter is trained beside the model `frozen`, a model (None) by itself.

    A loss or gradient that is not finite leaves the state as it was.
    """
    whole = lambda trained: trained if frozen is None else lora.merge(frozen, trained)
    value, gradient = jax.value_and_grad(lambda trained: objective.loss(whole(trained), batch))(state.trained)
    updates, opt = objective.optimizer().update(gradient, state.opt, state.trained)
    updates = jax.tree.map(lambda u: -learning_rate * u, updates)
    metrics = {"loss": value, "gradient_norm": optax.tree.norm(gradient)}
    finite = jnp.isfinite(value) & jnp.isfinite(metrics["gradient_norm"])
    updated = State(state.step + 1, optax.apply_updates(state.trained, updates), opt)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state), metrics


def train(retriever: Retriever, examples: Sequence[Example], queries: Mapping[str, str], passages: Mapping[str, str],
          plan: Plan, folder: Path, label: str, tell: Callable[[dict], None] = lambda row: None,
          log: Callable[..., None] = lambda **_: None) -> tuple[Retriever, lora.Adapter | None, list[dict]]:
    """Trains a copy of `retriever`; returns it, the adapter that was merged into it if any, and the curve, a row a step.

    Args:
        queries, passages: id -> text of the questions and chunks the examples name; of several processes, each looks up its
            share.
        folder: holds checkpoints/ and curve.jsonl; with them a stopped run goes on here.
        tell: is given each row of the curve once, however often its step is made.
        log: is given the pace, every time a checkpoint is due. It is no part of the curve, which is the same in every run.

    Raises:
        FloatingPointError: a loss or gradient is not finite; non_finite.json in `folder` holds the batch's ids.
        preemption.Stopped: SIGTERM came; the step under way was finished and saved.
        OSError: a checkpoint could not be written.
    """
    for name, least in (("epochs", 1), ("batch", 1), ("chunks", 1), ("save_every", 1)):
        if getattr(plan, name) < least:
            raise ValueError(f"config.train.{name}={getattr(plan, name)}: must be at least {least}")
    if not examples:
        raise ValueError(f"{label}: no question has a positive to be trained on; see the counts of the stage positives")
    if wrong := [width for width in plan.matryoshka if not 0 < width < retriever.width]:
        raise ValueError(f"config.train.matryoshka: width {wrong[0]}, but vectors of this model have {retriever.width} "
                         "components, which are always trained; give smaller ones")
    order = curriculum.order(examples, epochs=plan.epochs, seed=plan.seed, by=plan.order)
    data = curriculum.batches(order, plan.batch)
    steps = len(data)
    rate = optim.schedule(plan.learning_rate, steps, plan.warmup)
    chunks_of = functools.partial(curriculum.chunks_of, use_negatives=plan.use_negatives)
    ids = {"query": _tokenize(retriever, queries, [e.question for e in examples], "query", f"{label}, questions"),
           "document": _tokenize(retriever, passages, chunks_of(examples), "document", f"{label}, chunks")}
    sides = _sides(data, examples, ids, plan)
    cfg = dataclasses.replace(retriever.cfg, remat=plan.remat)
    objective = Objective(cfg, retriever.pooling, retriever.width, plan.chunks, tuple(side.room for side in sides),
                          plan.temperature, plan.weight_decay, plan.clip, tuple(plan.matryoshka))
    rows = lora.rows(retriever.base, plan.lora_targets) if plan.lora_rank else ()
    frozen = retriever.model if rows else None

    def create(model) -> State:
        # Copied, because the step donates its state and the caller keeps its retriever.
        trained = lora.init(rows, retriever.cfg, rank=plan.lora_rank, alpha=plan.lora_alpha,
                            key=jax.random.key(plan.seed)) if rows else jax.tree.map(jnp.copy, model)
        return objective.start(trained)

    with preemption.deferred() as asked_to_stop, Checkpoints(folder / "checkpoints") as checkpoints:
        state = checkpoints.restore(_abstract(create, retriever.model))
        if state:
            say(f"  {label}: goes on after step {int(state.step)} of {steps}")
        else:
            state = jax.jit(create)(retriever.model)
        curve = Curve(folder / "curve.jsonl", int(state.step))
        (folder / NON_FINITE).unlink(missing_ok=True)
        meter = flops.Meter(cfg, adapter=sum(x.size for x in jax.tree.leaves(state.trained)) if rows else 0)
        with Progress(label, steps, "steps") as bar:
            bar.add(int(state.step))
            for number in range(int(state.step) + 1, steps + 1):
                began = time.perf_counter()
                some = [examples[i] for i in data[number - 1]]
                now = float(rate(number - 1))
                state, metrics = train_step(objective, state, frozen, _batch(some, ids, plan, sides), now)
                row = {"step": number, "loss": float(metrics["loss"]), "learning_rate": now,
                       "gradient_norm": float(metrics["gradient_norm"])}
                if not np.isfinite(row["loss"] + row["gradient_norm"]):
                    checkpoints.save(number - 1, state, wait=True)
                    raise FloatingPointError(f"{label}: {_non_finite(row, some, chunks_of(some), folder)}")
                meter.add(_lengths(some, ids, plan), time.perf_counter() - began)
                pace = meter.pace(plan.save_every)
                curve.add(row)
                if number > curve.told:
                    tell(row)
                bar.add(note=f"loss {row['loss']:.3f}, {flops.told(pace)}")
                if number % plan.save_every == 0:
                    log(step=number, **pace)
                    curve.sync()
                    checkpoints.save(number, state)
                if asked_to_stop():
                    curve.sync()
                    checkpoints.save(number, state, wait=True)
                    raise preemption.Stopped(f"{label}: step {number} of {steps} is saved")
        curve.finish()
    if whole := meter.pace():
        log(steps=steps, **whole)
        say(f"  {label}: {flops.told(whole)}")
    model = jax.jit(lora.merge)(frozen, state.trained) if rows else state.trained
    return dataclasses.replace(retriever, model=model), state.trained if rows else None, curve.rows


class Curve:
    """The rows of curve.jsonl; those past the checkpoint a run resumes from are dropped, to be made again.

    `told` is the last step that any stopped run made, which curve.told remembers of dropped rows.
    """

    def __init__(self, path: Path, keep: int):
        self.path = path
        self.rows, self.told = hosts.first(functools.partial(self._kept, path, keep))

    @staticmethod
    def _kept(path: Path, keep: int) -> tuple[list[dict], int]:
        text, mark = path.read_text(encoding="utf-8") if path.is_file() else "", path.with_suffix(".told")
        told = max(text.count("\n"), int(mark.read_text()) if mark.is_file() else 0)
        lines = text.splitlines()[:keep]
        # Replaced, not cut, since a killed process must leave one or the other.
        for file, content in ((mark, str(told)), (path, "".join(line + "\n" for line in lines))):
            path.with_suffix(".new").write_text(content, encoding="utf-8")
            path.with_suffix(".new").replace(file)
        return list(map(json.loads, lines)), told

    def finish(self) -> None:
        """All steps are made: curve.jsonl is all that is to be kept."""
        if primary():
            self.path.with_suffix(".told").unlink()

    def add(self, row: dict) -> None:
        self.rows.append(row)
        if primary():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """To be called before a checkpoint is written, which must not outlive the rows that led to it."""
        if primary():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())


def _non_finite(row: dict, some: Sequence[Example], chunks: Sequence[str], folder: Path) -> str:
    """Writes down a batch that must not be learned from; what to tell the user."""
    path = folder / NON_FINITE
    values = {name: str(row[name]) for name in ("loss", "gradient_norm")}  # JSON has no NaN
    if primary():
        path.write_text(json.dumps({**row, **values, "questions": [e.question for e in some], "chunks": list(chunks)}, indent=1,
                                   ensure_ascii=False) + "\n", encoding="utf-8")
    return (f"step {row['step']} gave loss {row['loss']}, gradient norm {row['gradient_norm']}; its questions and chunks are in "
            f"{path}, and the state before it is kept in {folder / 'checkpoints'}. Look for what is odd in their texts, or set "
            "config.train.learning_rates lower")


def _tokenize(retriever: Retriever, texts: Mapping[str, str], names: Sequence[str], kind: str,
              label: str) -> dict[str, list[int]]:
    return dict(zip(names, retriever.tokenize(hosts.Lookup(texts.__getitem__, names), kind=kind, label=label), strict=True))


@dataclasses.dataclass(frozen=True)
class Side:
    """What holds the questions, or the passages, of every batch: one shape, since compiling a step again is dear."""

    rows: int
    length: int
    pieces: int
    room: int  # tokens of a piece on one device

    @classmethod
    def of(cls, batches: Sequence[Sequence[str]], ids: dict[str, list[int]], pieces: int) -> "Side":
        hands = layout.batch_multiple() * pieces
        rows = tk.round_up(max(map(len, batches)), math.lcm(2, hands))
        room = max(tk.deal([len(ids[name]) for name in names], hands, rows // hands)[1] for names in batches)
        longest = max(len(ids[name]) for names in batches for name in names)
        return cls(rows, tk.round_length(longest), pieces, tk.round_up(room, 64))

    def places(self, texts: Sequence[list[int]]) -> np.ndarray:
        """A row for each text, so that devices and pieces get about as many tokens each."""
        hands = layout.batch_multiple() * self.pieces
        hand, slot = np.divmod(tk.deal(list(map(len, texts)), hands, self.rows // hands)[0], self.rows // hands)
        device, piece = np.divmod(hand, self.pieces)
        return (device * (self.rows // hands) + slot) * self.pieces + piece  # as `loss.in_chunks` takes them


def _sides(data, examples: Sequence[Example], ids: dict[str, dict[str, list[int]]], plan: Plan) -> tuple[Side, Side]:
    """Questions and passages of all batches of a stage."""
    batches = [[examples[i] for i in data[k]] for k in range(len(data))]
    questions = [[e.question for e in some] for some in batches]
    passages = [curriculum.chunks_of(some, use_negatives=plan.use_negatives) for some in batches]
    return Side.of(questions, ids["query"], 1), Side.of(passages, ids["document"], plan.chunks)


def _lengths(some: Sequence[Example], ids: dict[str, dict[str, list[int]]], plan: Plan) -> list[int]:
    """Tokens of each text of a batch."""
    chunks = curriculum.chunks_of(some, use_negatives=plan.use_negatives)
    return [*(len(ids["query"][e.question]) for e in some), *(len(ids["document"][name]) for name in chunks)]


def _batch(some: Sequence[Example], ids: dict[str, dict[str, list[int]]], plan: Plan, sides: tuple[Side, Side]) -> dict:
    """Device arrays of one batch. Surplus rows are nobody's positive and nobody's negative."""
    chunks, *pairs = curriculum.masks(some, use_negatives=plan.use_negatives, denominator=plan.denominator)
    texts = [ids["query"][e.question] for e in some], [ids["document"][name] for name in chunks]
    places = [side.places(part) for side, part in zip(sides, texts, strict=True)]
    out = {name: tuple(map(layout.rows, tk.put(part, at, side.rows, side.length)))
           for name, part, at, side in zip(("queries", "passages"), texts, places, sides, strict=True)}
    for name, pair in zip(("positive", "negative"), pairs, strict=True):
        square = np.zeros((sides[0].rows, sides[1].rows), bool)
        square[np.ix_(*places)] = pair
        out[name] = layout.rows(square)
    return out


def _abstract(create: Callable, model) -> State:
    """Shapes and shardings of a state, for restoring onto this mesh."""
    mesh = jax.sharding.get_mesh()
    spec = lambda x: x.sharding.spec if x.sharding else P()
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec(x))),
                        jax.eval_shape(create, model))
