"""The loop: stopped and resumed, on other meshes, with NaN, and with objectives of the tests."""

import dataclasses
import functools
import json
import signal
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support import tiny
from support.short_run import (
    DISTILLATION,
    EXAMPLES,
    ONE_DEVICE,
    STEPS,
    assert_same_outcome,
    checkpoint_names,
    curve_rows,
    terminate,
    train,
    train_until,
)

from ark_jax import layout
from ark_jax.models import decoder, encoder, hf, lora
from ark_jax.models.pooling import VectorForm, embed, pool
from ark_jax.models.token_probabilities import token_log_probs
from ark_jax.runtime import preemption
from ark_jax.train import batches, fit, optim
from ark_jax.train.checkpoints import Checkpoints
from ark_jax.train.config import UpdateConfig
from ark_jax.train.placement import TextGrid, encode_in_pieces


@pytest.mark.parametrize(
    "changes", [{}, DISTILLATION, {"moments": "int8"}], ids=["info_nce", "distil", "int8"]
)
def test_training_resumed_after_sigterm_gives_the_same_bytes(
    changes, base, uninterrupted, at_step, tmp_path, capsys
):
    if changes:
        uninterrupted = tmp_path / "uninterrupted"
        train(base, uninterrupted, **changes)
    stopped = tmp_path / "stopped"
    before = signal.getsignal(signal.SIGTERM)
    train_until(5, base, stopped, at_step, **changes)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (
        checkpoint_names(stopped) == ["3", "5"]
        and len(curve_rows(stopped)) == 5
        and not (stopped / "model").exists()
    )
    train(base, stopped, **changes)
    assert f"goes on after step 5 of {STEPS}" in capsys.readouterr().out
    assert checkpoint_names(stopped) == ["9", "12"]
    assert_same_outcome(stopped, uninterrupted)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (ONE_DEVICE, (2, 2, 2)),
        ((2, 2, 2), ONE_DEVICE),
        pytest.param(ONE_DEVICE, (1, 8, 1), marks=pytest.mark.slow),
        pytest.param((1, 8, 1), ONE_DEVICE, marks=pytest.mark.slow),
        pytest.param((2, 2, 2), (4, 1, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_resumed_on_another_mesh_gives_equal_losses(
    first, then, base, uninterrupted, at_step, tmp_path
):
    train_until(4, base, tmp_path, at_step, mesh=first)
    curve, expected = train(base, tmp_path, mesh=then), curve_rows(uninterrupted)
    column = lambda rows, name: [row[name] for row in rows]
    assert column(curve, "step") == column(expected, "step")
    for name in ("loss", "gradient_norm"):
        np.testing.assert_allclose(column(curve, name), column(expected, name), rtol=2e-4)
    assert expected[0]["loss"] > 1.2 * expected[-1]["loss"]


def restore(folder: Path, abstract: fit.State) -> fit.State:
    with Checkpoints(folder / "checkpoints") as checkpoints:
        return checkpoints.restore(abstract)


def assert_equal_leaves(one, other) -> None:
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_non_finite_loss_saves_its_ids_and_the_state_before(
    base, at_step, tmp_path, monkeypatch, capsys
):
    wild = {"learning_rate": 1e30, "warmup": 0.0, "save_every": 50}
    abstract_states, abstract_state = [], fit._abstract_state

    def record(*args) -> fit.State:
        abstract_states.append(abstract_state(*args))
        return abstract_states[-1]

    monkeypatch.setattr(fit, "_abstract_state", record)
    for _ in range(2):  # a second run fails in the same way
        with pytest.raises(
            FloatingPointError, match=r"stage 1: step 2 gave loss .*non_finite\.json"
        ):
            train(base, tmp_path, **wild)
        assert checkpoint_names(tmp_path) == ["1"]
        assert [row["step"] for row in curve_rows(tmp_path)] == [1]
    assert "goes on after step 1" in capsys.readouterr().out
    content = json.loads((tmp_path / "non_finite.json").read_text())
    order = batches.shuffled_order(EXAMPLES, epochs=5, seed=1, by="document")
    group = [EXAMPLES[i] for i in batches.split_batches(order, 4)[1]]
    assert content["questions"] == [e.question for e in group] and content["step"] == 2
    assert content["chunks"] == sorted({c for e in group for c in (*e.positives, *e.negatives)})
    assert {"nan", "inf"} & {content["loss"], content["gradient_norm"]}
    stopped = train_until(1, base, tmp_path / "one", at_step, **wild)
    with jax.set_mesh(layout.make_mesh(ONE_DEVICE)):
        saved, expected = (restore(x, abstract_states[0]) for x in (tmp_path, stopped))
    assert_equal_leaves(saved, expected)
    assert int(saved.step) == 1 and all(np.isfinite(x).all() for x in jax.tree.leaves(saved.opt))


def cusp(trainable, frozen, batch):
    """A loss that is 0 at the target `batch`, where its gradient is NaN."""
    return jnp.sqrt(jnp.abs(trainable["w"] - batch)).sum(), {}


@pytest.mark.parametrize(("target", "finite"), [(1.0, False), (2.0, True), (np.nan, False)])
def test_a_non_finite_step_leaves_the_state_unchanged(target, finite, mesh):
    optimizer = optim.adamw(weight_decay=0.1, clip=1.0)
    start = fit.State.create({"w": jnp.ones(3)}, optimizer)
    before = jax.tree.map(np.array, start)
    state, metrics = fit.train_step(cusp, optimizer, start, None, jnp.full(3, target), 0.5)
    assert bool(np.isfinite(metrics["loss"])) == (not np.isnan(target))
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(before), strict=True)
    same = [np.array_equal(x, y) for x, y in leaves]
    assert not any(same) if finite else all(same)


def test_steps_after_a_discarded_one_leave_the_state_unchanged(mesh):
    optimizer = optim.adamw(weight_decay=0.1, clip=1.0)
    state = fit.State.create({"w": jnp.ones(3)}, optimizer)
    before = jax.tree.map(np.array, state)
    for steps_before, target in ((0, 1.0), (1, 2.0), (2, 3.0)):  # the first is not finite
        args = (None, jnp.full(3, target), 0.5, steps_before)
        state, metrics = fit.train_step(cusp, optimizer, state, *args)
        assert np.isfinite(metrics["gradient_norm"]) == (steps_before > 0)
        assert_equal_leaves(state, before)
    state, _ = fit.train_step(cusp, optimizer, state, None, jnp.full(3, 2.0), 0.5, 0)
    assert int(state.step) == 1


# --- other objectives ---------------------------------------------------------------------------

TEXTS = [np.random.default_rng(i).integers(5, tiny.VOCAB, 2 + i % 5).tolist() for i in range(24)]
GROUP, PROMPT, COMPLETION = 4, 2, 3  # samples a step, and their tokens


@dataclasses.dataclass(frozen=True)
class TripletLoss:
    """Margin between the cosines of an anchor to its positive and to its negative."""

    cfg: encoder.Config
    grid: TextGrid
    margin: float = 0.2

    def __call__(self, trainable, frozen, batch):
        model, tokens = fit.adapted_model(trainable, frozen), self.grid.piece_tokens
        encode = functools.partial(
            embed, model, self.cfg, VectorForm(("mean",), self.cfg.width), tokens
        )
        vectors = encode_in_pieces(encode, self.grid.pieces)(*batch["texts"])
        vectors = jax.sharding.reshard(vectors, P())
        anchors, positives, negatives = vectors[batch["rows"]]
        margins = ((anchors * (positives - negatives)).sum(-1) - self.margin).clip(max=0)
        return -margins.mean(), {"violations": (margins < 0).mean()}


@dataclasses.dataclass(frozen=True)
class ListwiseLoss:
    """Softmax over the scores of a question's candidates, each pair read as one text."""

    cfg: encoder.Config
    grid: TextGrid

    def __call__(self, trainable, frozen, batch):
        def score(tokens, mask):
            hidden = trainable["encoder"](tokens, mask, self.cfg, self.grid.piece_tokens)
            return pool(hidden, mask, "cls") @ trainable["head"]

        scores = encode_in_pieces(score, self.grid.pieces)(*batch["texts"])
        lists = jax.sharding.reshard(scores, P())[batch["rows"], 0]
        return -jax.nn.log_softmax(lists)[:, 0].mean(), {}


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """Negative log-likelihood of each next token, weighted by the advantage of its text."""

    cfg: decoder.Config

    def __call__(self, trainable, frozen, batch):
        model = fit.adapted_model(trainable, frozen)
        log_probs = token_log_probs(model, self.cfg, batch["tokens"], batch["mask"])
        return -(log_probs.sum(axis=1) * batch["advantages"]).mean(), {}


def text_batch(step: int, tokens, advantages) -> fit.TrainingBatch:
    tokens = np.asarray(tokens)
    mask = np.ones(tokens.shape, bool)
    arrays = {"tokens": tokens, "mask": mask, "advantages": np.asarray(advantages)}
    arrays = jax.tree.map(layout.rows, arrays)
    return fit.TrainingBatch(arrays, {"texts": [str(step)]}, tokens.size, 1.0)


def token_batch(step: int, trainable) -> fit.TrainingBatch:
    """Random texts to imitate."""
    tokens = np.random.default_rng(step).integers(0, tiny.VOCAB, (GROUP, 6), np.int32)
    return text_batch(step, tokens, np.ones(GROUP, np.float32))


def policy_gradient_batch(step: int, trainable, *, cfg: decoder.Config) -> fit.TrainingBatch:
    """GRPO's: the policy samples a group, and a text's advantage is its standardised reward."""
    tokens = sample(trainable, cfg, jax.random.key(step))
    rewards = (np.asarray(tokens)[:, PROMPT:] < tiny.VOCAB // 2).mean(axis=1, dtype=np.float32)
    return text_batch(step, tokens, (rewards - rewards.mean()) / (rewards.std() + 1e-4))


@functools.partial(jax.jit, static_argnums=1)
def sample(model, cfg: decoder.Config, key) -> jax.Array:
    """A group of completions of one prompt, `[b t]`."""
    tokens = jax.sharding.reshard(jnp.full((GROUP, PROMPT), 7), P(layout.BATCH))
    for k in jax.random.split(key, COMPLETION):
        last = model(tokens, tokens >= 0, cfg)[:, -1]
        token = jax.random.categorical(k, model.logits(last, cfg)).astype(tokens.dtype)
        tokens = jnp.concatenate([tokens, token[:, None]], axis=1)
    return tokens


def grid_batch(step: int, trainable, *, grid: TextGrid, rows: tuple[int, int]) -> fit.TrainingBatch:
    """Twelve texts; `rows` is the shape in which an objective looks up where they stand."""
    texts = np.roll(np.arange(24), 5 * step)[:12]
    places, arrays = grid.place([TEXTS[i] for i in texts])
    batch = {"texts": arrays, "rows": jnp.asarray(places.reshape(rows))}
    return fit.TrainingBatch(batch, {"texts": [str(i) for i in texts]}, 50, 1.0)


@dataclasses.dataclass(frozen=True)
class Task:
    """The arguments of `fit.train` that differ between kinds of training."""

    objective: fit.Objective
    make_batch: fit.MakeBatch
    trainable: Any
    frozen: Any = None


def create_task(name: str, folder: Path) -> Task:
    """An objective on a tiny encoder or decoder, for the mesh that is set."""
    family = "bert" if name in ("triplets", "listwise") else "qwen3"
    model, cfg, _ = hf.load_model(str(tiny.write(folder, family)))
    if name in ("triplets", "listwise"):
        grid = TextGrid.from_lengths([list(map(len, TEXTS))], pieces=2)
        make_batch = functools.partial(
            grid_batch, grid=grid, rows=(3, 4) if name == "triplets" else (4, 3)
        )
        if name == "triplets":
            return Task(TripletLoss(cfg, grid), make_batch, model)
        head = 0.1 * jax.random.normal(jax.random.key(0), (cfg.width, 1))
        return Task(ListwiseLoss(cfg, grid), make_batch, {"encoder": model, "head": head})
    if name == "policy gradient":
        make_batch = functools.partial(policy_gradient_batch, cfg=cfg)
        return Task(TokenLoss(cfg), make_batch, model)
    if name == "next token, adapter":
        rows = lora.target_weights(folder, ("q", "v"))
        adapter = lora.init(rows, cfg, rank=2, alpha=4.0, key=jax.random.key(0))
        return Task(TokenLoss(cfg), token_batch, adapter, model)
    return Task(TokenLoss(cfg), token_batch, model)


TASKS = [
    "triplets",
    "next token, adapter",
    "policy gradient",
    # As the first is an encoder's, and the second a decoder's.
    pytest.param("listwise", marks=pytest.mark.slow),
    pytest.param("next token", marks=pytest.mark.slow),
]


def fit_task(
    task: Task, folder: Path, reads_weights: bool = False, on_step=lambda row: None, **changes
):
    """Four steps from where `folder` stands."""
    folder.mkdir(exist_ok=True)
    task = dataclasses.replace(task, **changes)
    return fit.train(
        task.objective,
        task.make_batch,
        UpdateConfig(warmup=0.25, save_every=3),
        fit.Run(folder, "task", on_step),
        task.trainable,
        task.frozen,
        steps=4,
        learning_rate=1e-2,
        reads_weights=reads_weights,
    )


def trained_weights(trained: fit.Trained) -> Any:
    """The adapter, or the model where all of it is trained."""
    return trained.model if trained.adapter is None else trained.adapter


@pytest.mark.parametrize(
    ("reads_weights", "order"),
    [(False, "b1 b2 s1 b3 s2 s3 b4 s4"), (True, "b1 s1 b2 s2 b3 s3 b4 s4")],
)
def test_the_next_batch_is_made_before_a_step_is_read(reads_weights, order, mesh, tmp_path):
    """Except where batches are made from the weights, and where a state is saved: after step 3."""
    events, task = [], create_task("next token", tmp_path / "model")

    def make_batch(step: int, trainable) -> fit.TrainingBatch:
        events.append(f"b{step + 1}")
        return token_batch(step, trainable)

    fit_task(
        task,
        tmp_path / "run",
        reads_weights,
        lambda row: events.append(f"s{row['step']}"),
        make_batch=make_batch,
    )
    assert " ".join(events) == order


@pytest.mark.parametrize("name", TASKS)
def test_every_objective_resumes_with_the_same_bytes(name, mesh, at_step, tmp_path):
    task = create_task(name, tmp_path / "model")
    before = jax.tree.map(np.array, (task.trainable, task.frozen))
    whole = fit_task(task, tmp_path / "expected")
    at_step(2, terminate)
    with pytest.raises(preemption.Preempted, match="task: step 2 of 4 is saved"):
        fit_task(task, tmp_path / "stopped")
    at_step(0, None)
    resumed = fit_task(task, tmp_path / "stopped")
    assert_equal_leaves(resumed[:2], whole[:2])
    weights, curve = trained_weights(resumed), resumed.curve
    assert curve == whole.curve and [row["step"] for row in curve] == [1, 2, 3, 4]
    curves = [(tmp_path / x / "curve.jsonl").read_bytes() for x in ("expected", "stopped")]
    assert curves[0] == curves[1]
    # The caller's weights are untouched, and every trained matrix has moved.
    assert_equal_leaves((task.trainable, task.frozen), before)
    moved = jax.tree.map(lambda x, y: bool(np.any(x != y)), weights, before[0])
    assert (any if name == "policy gradient" else all)(jax.tree.leaves(moved))
    assert ("violations" in curve[0]) == (name == "triplets")


def test_training_continues_after_a_non_finite_batch_is_mended(mesh, tmp_path):
    task = create_task("next token, adapter", tmp_path / "model")
    expected = fit_task(task, tmp_path / "expected")

    def broken_batch(step: int, trainable) -> fit.TrainingBatch:
        batch = token_batch(step, trainable)
        advantages = np.full(GROUP, np.inf if step == 2 else 1.0, np.float32)
        arrays = batch.arrays | {"advantages": layout.rows(advantages)}
        return dataclasses.replace(batch, arrays=arrays)

    with pytest.raises(FloatingPointError, match=r"task: step 3 gave loss .* ids of its texts"):
        fit_task(task, tmp_path / "broken", make_batch=broken_batch)
    content = json.loads((tmp_path / "broken" / "non_finite.json").read_text())
    assert content["step"] == 3 and content["texts"] == ["2"]
    assert checkpoint_names(tmp_path / "broken") == ["2"]
    again = fit_task(task, tmp_path / "broken")
    assert_equal_leaves(again[:2], expected[:2])
    assert not (tmp_path / "broken" / "non_finite.json").exists()
