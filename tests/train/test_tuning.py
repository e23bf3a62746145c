"""Supervised and reinforced training of a tiny language model: what is learnt, resume, faults."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from support import tiny
from support.decoders import open_model, plain_pass
from support.short_run import terminate

from ark_jax import layout
from ark_jax.models.language import LanguageModel
from ark_jax.runtime import preemption
from ark_jax.train import fit, policy, tuning
from ark_jax.train.config import GrpoConfig, LanguageModelConfig
from ark_jax.train.groups import Group
from ark_jax.train.tuning import Demonstration

CONFIG = LanguageModelConfig(
    warmup=0.1, floor=0.2, save_every=100, remat="products", lora_alpha=8.0
)
SFT = {"learning_rate": 3e-3, "seed": 5, "epochs": 6, "batch": 4}  # of ten answers: 18 steps
SAMPLES, PROMPTS, TOKENS = 6, 3, 2
POLICY = GrpoConfig(samples=SAMPLES, keep_dead=True)  # all steps of these tests have one shape
GRPO = {
    "learning_rate": 3e-3,
    "seed": 5,
    "steps": 6,
    "prompts": PROMPTS,
    "prompt_tokens": 8,
    "completion_tokens": TOKENS,
}


def chosen(settings: dict, changes: dict) -> dict:
    """The settings with those changes that are theirs, which `changes` loses."""
    return {name: changes.pop(name, value) for name, value in settings.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("decoder"), "llama", tokenizer="begin")


def demonstrations() -> list[Demonstration]:
    """Ten answers; the stop token ends each."""
    random = np.random.default_rng(1)
    ids = lambda n: random.integers(5, tiny.VOCAB, n).tolist()
    return [Demonstration(ids(3 + i), [*ids(1 + i % 4), 1], name=f"q{i}") for i in range(10)]


def weights_of(model: LanguageModel) -> list[np.ndarray]:
    return list(map(np.asarray, jax.tree.leaves(model.model)))


def assert_same_weights(one: LanguageModel, other: LanguageModel) -> None:
    for x, y in zip(weights_of(one), weights_of(other), strict=True):
        np.testing.assert_array_equal(x, y)


def mean_log_likelihood(model: LanguageModel, answers: list[Demonstration]) -> float:
    """Of a token of the answers, by a plain pass."""
    logits = plain_pass(model, [[*x.prompt_ids, *x.completion_ids] for x in answers])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    sums = [
        logs[row, len(x.prompt_ids) - 1 + i, token]
        for row, x in enumerate(answers)
        for i, token in enumerate(x.completion_ids)
    ]
    return float(np.mean(sums))


# --- given answers --------------------------------------------------------------------------------


def sft(folder: Path, run: Path, answers=None, **changes):
    run.mkdir(exist_ok=True)
    settings = chosen(SFT, changes)
    config = dataclasses.replace(CONFIG, **changes)
    answers = answers or demonstrations()
    return tuning.sft(open_model(folder), answers, config, fit.Run(run, "sft"), **settings)


@pytest.mark.parametrize("rank", [0, 4])
def test_supervised_training_learns_answers_and_their_end_token(rank, folder, tmp_path, mesh):
    base, answers = open_model(folder), demonstrations()
    ends = [
        Demonstration([*x.prompt_ids, *x.completion_ids[:-1]], x.completion_ids[-1:])
        for x in answers
    ]
    before = mean_log_likelihood(base, answers)
    tuned, adapter, curve = sft(
        folder, tmp_path, lora_rank=rank, learning_rate=0.03 if rank else 6e-3
    )
    assert mean_log_likelihood(tuned, answers) > before / 3
    assert mean_log_likelihood(tuned, ends) > mean_log_likelihood(base, ends) / 3
    assert len(curve) == 18 and curve[0]["loss"] > 2 * curve[-1]["loss"]
    assert curve[-1]["learning_rate"] < 0.3 * max(row["learning_rate"] for row in curve)
    assert (adapter is None) == (not rank) and (adapter is None or adapter.rank == 4)
    assert_same_weights(base, open_model(folder))


def test_the_supervised_loss_is_the_mean_over_tokens(folder, tmp_path, mesh):
    answers = demonstrations()
    _, _, curve = sft(folder, tmp_path, epochs=1, batch=10)
    assert len(curve) == 1
    expected = mean_log_likelihood(open_model(folder), answers)
    assert curve[0]["loss"] == pytest.approx(-expected, rel=1e-5)
    assert curve[0]["completions"] == 10


def test_answers_with_zero_weight_train_nothing(folder, tmp_path, mesh):
    answers = [x._replace(weight=0.0) for x in demonstrations()]
    tuned, _, curve = sft(folder, tmp_path, answers)
    assert [row["loss"] for row in curve] == [0] * 18
    assert_same_weights(tuned, open_model(folder))


@pytest.mark.slow
def test_supervised_training_is_the_same_on_a_mesh(folder, tmp_path):
    curves = []
    for shape in ((1, 1, 1), (2, 2, 2)):
        with jax.set_mesh(layout.make_mesh(shape)):
            _, _, curve = sft(folder, tmp_path / str(shape), epochs=1)
        curves.append([(row["loss"], row["gradient_norm"]) for row in curve])
    np.testing.assert_allclose(curves[0], curves[1], rtol=2e-4)


def test_supervised_training_resumes_with_the_same_bytes(folder, tmp_path, at_step, mesh):
    expected, _, curve = sft(folder, tmp_path / "expected")
    at_step(4, terminate)
    with pytest.raises(preemption.Preempted, match="sft: step 4 of 18 is saved"):
        sft(folder, tmp_path / "stopped")
    at_step(0, None)
    tuned, _, again = sft(folder, tmp_path / "stopped")
    assert again == curve and len(curve) == 18
    assert_same_weights(tuned, expected)


def test_invalid_answers_are_refused_before_training(folder, tmp_path, mesh):
    lm = open_model(folder)
    with pytest.raises(ValueError, match="sft: no answer to train on"):
        tuning.sft(lm, [], CONFIG, fit.Run(tmp_path, "sft"), **SFT)
    answers = [*demonstrations(), Demonstration([5], [], name="q11")]
    with pytest.raises(ValueError, match=r"group 10 \(q11\), completion 0 has no token"):
        tuning.sft(lm, answers, CONFIG, fit.Run(tmp_path, "sft"), **SFT)
    assert not any(tmp_path.iterdir())


# --- own answers ----------------------------------------------------------------------------------


class Rollouts:
    """Draws answers of two tokens and rewards low ids; writes a step's before it returns them."""

    def __init__(self, folder: Path, **changes):
        self.folder, self.changes, self.drawn = folder, changes, []
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, step: int, model: LanguageModel) -> list[Group]:
        file = self.folder / f"{step}.json"
        if not file.is_file():
            file.write_text(json.dumps(self.draw(step, model)))
            self.drawn.append(step)
        rows = json.loads(file.read_text())
        return [Group(**row, **self.changes) for row in rows]

    def draw(self, step: int, model: LanguageModel) -> list[dict]:
        random = np.random.default_rng([9, step])
        prompts = [[9 + i, 20 + i, 40] for i in range(PROMPTS)]
        rows = [list(prompt) for prompt in prompts for _ in range(SAMPLES)]
        old = [[] for _ in rows]
        for _ in range(TOKENS):
            logits = plain_pass(model, rows)
            for i, row in enumerate(rows):
                scores = logits[i, len(row) - 1]
                logs = scores - np.log(np.exp(scores).sum())
                row.append(int(random.choice(len(logs), p=np.exp(logs) / np.exp(logs).sum())))
                old[i].append(float(logs[row[-1]]))
        completions = [row[-TOKENS:] for row in rows]
        rewards = np.array([np.mean(np.array(x) < tiny.VOCAB // 2) for x in completions])
        gains = policy.advantages(rewards, np.arange(len(rows)) // SAMPLES)
        part = lambda values, i: list(values[i * SAMPLES : (i + 1) * SAMPLES])
        return [
            {
                "prompt_ids": prompt,
                "completions": part(completions, i),
                "advantages": list(map(float, part(gains, i))),
                "old": part(old, i),
                "name": f"q{i}",
            }
            for i, prompt in enumerate(prompts)
        ]

    def rewards(self) -> list[float]:
        """The mean share of low ids in the answers of each step."""
        files = sorted(self.folder.iterdir(), key=lambda path: int(path.stem))
        steps = [json.loads(file.read_text()) for file in files]
        return [
            float(np.mean([np.array(row["completions"]) < tiny.VOCAB // 2 for row in rows]))
            for rows in steps
        ]


def grpo(folder: Path, run: Path, *, rollouts=None, **changes):
    run.mkdir(exist_ok=True)
    settings = chosen(GRPO, changes)
    policy = GrpoConfig(**chosen(dataclasses.asdict(POLICY), changes))
    config = dataclasses.replace(CONFIG, **changes)
    rollouts = rollouts or Rollouts(run / "rollouts")
    model = open_model(folder)
    trained = tuning.grpo(model, rollouts, config, fit.Run(run, "grpo"), policy=policy, **settings)
    return trained, rollouts


@pytest.mark.parametrize(("rank", "updates"), [(0, 1), (4, 2)])
def test_reinforcement_raises_the_reward_of_draws(rank, updates, folder, tmp_path, mesh):
    changes = {"lora_rank": rank, "learning_rate": 0.02 if rank else 4e-3}
    (_, adapter, curve), rollouts = grpo(folder, tmp_path, steps=14, updates=updates, **changes)
    rewards = rollouts.rewards()
    assert len(rewards) == 14 and len(curve) == 14 * updates
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2
    assert rollouts.drawn == list(range(14)) and (adapter is None) == (not rank)
    # The first update of a step is on policy: the ratio is 1, and nothing is clipped.
    assert all(row["clip_fraction"] == 0 for row in curve[::updates])
    assert any(row["clip_fraction"] > 0 for row in curve) == (updates > 1)
    assert 0 < curve[0]["entropy"] < np.log(tiny.VOCAB)


@pytest.mark.parametrize("updates", [1, 2])
def test_reinforcement_resumes_with_the_same_bytes(updates, folder, tmp_path, at_step, mesh):
    """Stopped after an odd number of updates, the second inside a step; drawn steps are read."""
    changes = {"updates": updates, "steps": 6 // updates}
    (expected, _, curve), whole = grpo(folder, tmp_path / "expected", **changes)
    at_step(5, terminate)
    with pytest.raises(preemption.Preempted, match="grpo: step 5 of 6 is saved"):
        grpo(folder, tmp_path / "stopped", **changes)
    at_step(0, None)
    (tuned, _, again), rest = grpo(folder, tmp_path / "stopped", **changes)
    assert again == curve
    assert_same_weights(tuned, expected)
    for file in whole.folder.iterdir():
        assert file.read_bytes() == (rest.folder / file.name).read_bytes()
    assert rest.drawn == ([5] if updates == 1 else [])


def test_a_step_of_dead_groups_trains_nothing(folder, tmp_path, mesh):
    """Neither does a divergence, whose metric such a step has as well."""
    numbers = [[-6.0, -6.0]] * 2
    dead = Group([9, 40], [[7, 1], [8, 1]], [0.0, 0.0], numbers, numbers)
    (tuned, _, curve), _ = grpo(
        folder,
        tmp_path,
        rollouts=lambda step, model: [dead, dead],
        steps=2,
        keep_dead=False,
        kl="k3",
        kl_coefficient=0.3,
    )
    columns = ("loss", "gradient_norm", "completions", "k1", "clip_fraction")
    assert [[row[name] for name in columns] for row in curve] == [[0] * 5] * 2
    assert_same_weights(tuned, open_model(folder))


def test_only_kept_dead_groups_and_cut_off_answers_count(folder, tmp_path, mesh):
    live = Group([9, 40], [[7, 1], [8, 3]], [1.0, -0.5], ended=[True, False])
    dead = Group([10, 40], [[7, 1], [8, 3]], [0.0, 0.0], ended=[True, True])
    rows = {}
    for keep_dead, keep_cut_off in ((False, True), (True, False), (True, True)):
        run = tmp_path / f"{keep_dead}{keep_cut_off}"
        changes = {"keep_dead": keep_dead, "keep_cut_off": keep_cut_off, "steps": 1}
        (_, _, curve), _ = grpo(folder, run, rollouts=lambda step, model: [live, dead], **changes)
        rows[keep_dead, keep_cut_off] = curve[0]
    completions = {key: row["completions"] for key, row in rows.items()}
    assert completions == {(False, True): 2, (True, False): 3, (True, True): 4}
    # On policy the loss is minus the mean advantage of a token.
    losses = {key: row["loss"] for key, row in rows.items()}
    expected = {(False, True): -0.25, (True, False): -1 / 3, (True, True): -0.125}
    assert losses == pytest.approx(expected, rel=1e-6)
    norms = {key: row["gradient_norm"] for key, row in rows.items()}
    assert norms[True, True] == pytest.approx(norms[False, True] / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("groups", "changes", "message"),
    [
        (
            [Group([9], [[7], []], [1.0, -1.0], name="q3")],
            {},
            r"grpo, step 0: group 0 \(q3\), completion 1 has no token",
        ),
        ([], {}, "grpo, step 0: no group was drawn"),
        (
            [Group([9], [[7], [8]], [1.0, -1.0])],
            {"updates": 2},
            "2 updates a step need the numbers `old`",
        ),
        ([Group([9], [[7], [8]], [1.0, -1.0])], {"keep_cut_off": False}, "`ended` is missing"),
        (
            [Group([9], [[7], [8]], [1.0, -1.0])],
            {"kl": "k2"},
            "kl='k2' needs the numbers `policy_reference` of each group",
        ),
    ],
)
def test_an_invalid_group_is_refused_with_its_step(
    groups, changes, message, folder, tmp_path, mesh
):
    with pytest.raises(ValueError, match=message):
        grpo(folder, tmp_path, rollouts=lambda step, model: groups, **changes)
