"""Training of pair scorers on weighted lists: all heads, meshes, resume, weights, batches."""

import dataclasses
import os
import signal

import jax
import numpy as np
import pytest
from support import pairs, tiny

from ark_jax import layout
from ark_jax.models import hf
from ark_jax.models.pairs import HEADS, CrossEncoder
from ark_jax.runtime import preemption
from ark_jax.train import fit, list_batches, listwise, losses
from ark_jax.train.config import AdapterConfig
from ark_jax.train.lists import ListEpochs, PairList
from ark_jax.train.placement import TextGrid

WORDS = ("tide", "lamp", "salt", "wool", "bell")


def pair_list(number: int) -> PairList:
    """Which of the words is right: the one in the question. Lists differ in length and weights."""
    word = WORDS[number % 5]
    negatives = [f"Kismet, {other}" for other in WORDS if other != word][: 2 + number % 3]
    rights = (f"Kismet, {word}", "Kismet, end", *negatives)
    weights = tuple(0.5 + (number + i) % 4 / 2 for i in range(len(rights)))
    return PairList(f"the {word} of Kismet{' ?' * (number % 2)}", rights, weights, required=1)


LISTS = [pair_list(number) for number in range(10)]
CONFIG = AdapterConfig(save_every=100, remat="products")
TRAINING = {
    "batch": 4,
    "epochs": 2,
    "learning_rate": 2e-3,
    "seed": 3,
    "negatives": 3,
    "choose_again": True,
    "temperature": 0.8,
    "loss": losses.weighted_lists,
    "after_epoch": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("scorer"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean")


def train(folder, run, *, head="linear", mesh=(1, 1, 1), lists=LISTS, **changes):
    """Trains a copy of the tiny scorer; returns it and the curve."""
    run.mkdir(exist_ok=True)
    with jax.set_mesh(layout.make_mesh(mesh)):
        scorer = CrossEncoder.from_pretrained(str(folder), head=head)
        settings = {name: changes.pop(name, value) for name, value in TRAINING.items()}
        config = dataclasses.replace(CONFIG, **changes)
        return listwise.train(scorer, lists, config, fit.Run(run), **settings)


def losses_of(curve) -> list[float]:
    return [row["loss"] for row in curve]


def scores_of(scorer: CrossEncoder) -> list[np.ndarray]:
    """The logits of each list's candidates."""
    pairs = [(one.left, right) for one in LISTS for right in one.rights]
    ends = np.cumsum([len(one.rights) for one in LISTS])[:-1]
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        return np.split(scorer.score(pairs), ends)


@pytest.mark.parametrize("head", HEADS)
def test_training_lowers_the_loss_of_every_head(folder, tmp_path, head):
    tuned, _, curve = train(folder, tmp_path, head=head, epochs=12, choose_again=False)
    assert np.mean(losses_of(curve)[-3:]) < 0.6 * np.mean(losses_of(curve)[:3])
    assert tuned.cfg.head == head and len(curve) == 12 * 3
    assert np.mean([np.argmax(scores) == 0 for scores in scores_of(tuned)]) >= 0.6  # of some 5


def list_loss(scores: np.ndarray, weights: np.ndarray) -> float:
    """Equation 5 of one list, in double precision."""
    scores = scores.astype(np.float64)
    terms = np.exp(scores - scores[0]) * np.array([1, *weights[1:]])
    return weights[0] * np.log(terms.sum())


@pytest.mark.parametrize("head", ["cosine", pytest.param("star", marks=pytest.mark.slow)])
def test_the_first_loss_equals_that_of_the_untrained_scores(folder, tmp_path, head):
    """All lists in one batch: their order does not matter."""
    _, _, curve = train(folder, tmp_path, head=head, epochs=1, batch=16, choose_again=False)
    with jax.set_mesh(layout.make_mesh((1, 1, 1))):
        scorer = CrossEncoder.from_pretrained(str(folder), head=head)
    expected = [
        list_loss(scores[:4] / 0.8, one.weights[: len(scores[:4])])
        for one, scores in zip(LISTS, scores_of(scorer), strict=True)
    ]
    assert curve[0]["loss"] == pytest.approx(np.mean(expected), rel=1e-4)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 2, 2),
        pytest.param((1, 8, 1), marks=pytest.mark.slow),
        pytest.param((4, 1, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("head", "again"),
    [
        ("cosine", False),
        pytest.param("cosine", True, marks=pytest.mark.slow),
        pytest.param("star", False, marks=pytest.mark.slow),
    ],
)
def test_losses_on_a_mesh_equal_those_on_one_device(folder, tmp_path, shape, head, again):
    _, _, expected = train(folder, tmp_path / "one", head=head, choose_again=again)
    _, _, curve = train(folder, tmp_path / "mesh", head=head, mesh=shape, choose_again=again)
    np.testing.assert_allclose(losses_of(curve), losses_of(expected), rtol=2e-4)
    assert len({round(loss, 4) for loss in losses_of(expected)}) > 3


def test_a_decoder_learns_alike_on_every_mesh(tmp_path):
    """Its yes and no are two rows of the table of embeddings, whose columns are cut."""
    folder = pairs.write_yes_no(tmp_path / "decoder")
    given = {"head": None, "choose_again": False, "epochs": 3}
    _, _, expected = train(folder, tmp_path / "one", **given)
    _, _, curve = train(folder, tmp_path / "mesh", mesh=(2, 2, 2), **given)
    np.testing.assert_allclose(losses_of(curve), losses_of(expected), rtol=2e-4)
    assert np.mean(losses_of(curve)[-3:]) < 0.9 * np.mean(losses_of(curve)[:3])


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    """A run that nothing stopped: its folder, the trained scorer and the curve."""
    run = tmp_path_factory.mktemp("whole")
    trained = train(folder, run)
    return run, trained.model, trained.curve


# Before, inside and after the step that begins the second epoch, whose negatives are chosen anew.
@pytest.mark.parametrize("step", [3, 4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_a_resumed_run_gives_the_same_bytes(folder, tmp_path, at_step, step, finished):
    run, wanted, curve = finished
    at_step(step, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(preemption.Preempted, match=f"step {step} of 6"), preemption.raise_signals():
        train(folder, tmp_path)
    at_step(0, None)
    resumed, _, again = train(folder, tmp_path)
    assert again == curve
    for x, y in zip(*map(jax.tree.leaves, (resumed.model, wanted.model)), strict=True):
        np.testing.assert_array_equal(x, y)
    chosen = [(path / "negatives_2.parquet").read_bytes() for path in (run, tmp_path)]
    assert chosen[0] == chosen[1]


ADAPTED = {"lora_rank": 3, "lora_alpha": 7.0, "lora_targets": ("q", "v", "down")}


@pytest.fixture(scope="module")
def adapted(folder, tmp_path_factory):
    """A run of an adapter that nothing stopped."""
    return train(folder, tmp_path_factory.mktemp("adapted"), **ADAPTED)


@pytest.mark.parametrize("stop", [3, 4])  # at the end of the first epoch, and in the second
def test_each_epoch_hands_over_its_scorer_also_in_a_resumed_run(folder, tmp_path, at_step, stop):
    seen: dict[int, list[np.ndarray]] = {}

    def note(epoch: int, scorer: CrossEncoder) -> None:
        scores = np.concatenate(scores_of(scorer))
        if epoch in seen:  # a repeated end of an epoch has the same weights
            np.testing.assert_array_equal(seen[epoch], scores)
        seen[epoch] = scores

    whole, _, curve = train(folder, tmp_path / "whole", after_epoch=note)
    assert list(seen) == [1, 2]
    np.testing.assert_array_equal(seen[2], np.concatenate(scores_of(whole)))
    assert not np.array_equal(seen[1], seen[2])
    at_step(stop, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(preemption.Preempted), preemption.raise_signals():
        train(folder, tmp_path / "killed", after_epoch=note)
    at_step(0, None)
    assert train(folder, tmp_path / "killed", after_epoch=note).curve == curve


def test_only_the_adapted_matrices_and_the_head_are_trained(folder, adapted, mesh):
    before = CrossEncoder.from_pretrained(str(folder), head="linear")
    weights = lambda scorer: dict(hf.named_parameters(scorer.model))
    old, new = weights(before), weights(adapted.model)
    moved = {name for name in old if not np.array_equal(old[name][...], new[name][...])}
    of_head = {"dense", "dense_bias", "out", "out_bias"}
    assert {name.rsplit(".", 1)[-1] for name in moved} == {*ADAPTED["lora_targets"]} | of_head
    name = next(name for name in moved if name.endswith("down"))
    change = np.asarray(new[name][...] - old[name][...])
    assert [np.linalg.matrix_rank(layer, tol=1e-5) for layer in change] == [3, 3]


def test_an_adapter_starts_with_the_loss_of_the_whole_scorer(adapted, finished):
    assert losses_of(adapted.curve)[0] == pytest.approx(losses_of(finished[2])[0], rel=1e-5)
    assert abs(losses_of(adapted.curve)[-1] - losses_of(finished[2])[-1]) > 1e-4


@pytest.mark.parametrize(
    "head", ["linear", *(pytest.param(head, marks=pytest.mark.slow) for head in ("cosine", "star"))]
)
def test_adapter_losses_on_a_mesh_equal_those_on_one_device(folder, tmp_path, adapted, head):
    expected = adapted.curve
    if head != "linear":
        expected = train(folder, tmp_path / "one", head=head, **ADAPTED).curve
    _, _, curve = train(folder, tmp_path / "mesh", head=head, mesh=(2, 2, 2), **ADAPTED)
    np.testing.assert_allclose(losses_of(curve), losses_of(expected), rtol=2e-4)
    assert len({round(loss, 4) for loss in losses_of(expected)}) > 3


def test_a_resumed_adapter_gives_the_same_bytes(folder, tmp_path, at_step, adapted):
    """Inside the second epoch, whose negatives the adapted scorer chose."""
    at_step(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(preemption.Preempted, match="step 4 of 6"), preemption.raise_signals():
        train(folder, tmp_path, **ADAPTED)
    at_step(0, None)
    resumed, _, curve = train(folder, tmp_path, **ADAPTED)
    assert curve == adapted.curve
    for x, y in zip(*map(jax.tree.leaves, (resumed.model, adapted.model.model)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_choosing_negatives_again_changes_the_second_epoch(folder, tmp_path, finished):
    again = losses_of(finished[2])
    once = losses_of(train(folder, tmp_path, choose_again=False).curve)
    assert again[:3] == pytest.approx(once[:3], rel=1e-5)
    assert abs(again[3] - once[3]) > 1e-3


def test_the_weights_of_candidates_scale_the_loss(folder, tmp_path, finished):
    plain = [dataclasses.replace(one, weights=(1.0,) * len(one.weights)) for one in LISTS]
    half = [dataclasses.replace(one, weights=(0.5, *one.weights[1:])) for one in plain]
    curve = lambda lists, name: train(folder, tmp_path / name, lists=lists, epochs=1).curve
    first = lambda lists, name: losses_of(curve(lists, name))[0]
    assert first(half, "half") == pytest.approx(first(plain, "plain") / 2, rel=1e-5)
    assert abs(losses_of(finished[2])[0] - first(plain, "again")) > 0.05


def maker_of(folder, run, *, head, lists=LISTS, **changes):
    scorer = CrossEncoder.from_pretrained(str(folder), head=head)
    texts = list_batches.ListTexts.create(lists)
    settings = {"batch": 4, "negatives": 3, "seed": 1} | changes
    random = np.random.default_rng(0)
    score = lambda trainable: [random.random(len(one.rights)) for one in lists]
    epochs = ListEpochs(lists, folder=run, score=score, **settings)
    return list_batches.ListwiseBatches.create(epochs, texts, scorer, 4 * epochs.steps), epochs


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_a_batch_encodes_each_text_once(folder, tmp_path, head, mesh):
    doubled = [one for one in LISTS for _ in range(2)]
    maker, epochs = maker_of(folder, tmp_path, head=head, lists=doubled, batch=16)
    for step in range(4 * epochs.steps):
        batch = maker(step)
        used = lambda part, arrays=batch.arrays: int(np.asarray(arrays[part][1]).any(1).sum())
        pairs = list(zip(batch.ids["questions"], batch.ids["candidates"], strict=True))
        assert len(set(pairs)) == len(pairs)
        if head == "linear":
            assert used("pairs") == len(pairs)
        else:
            lefts, rights = zip(*pairs, strict=True)
            assert (used("left"), used("right")) == (len(set(lefts)), len(set(rights)))


@pytest.mark.parametrize("head", HEADS)
def test_every_choice_of_negatives_fits_the_capacity(folder, tmp_path, head, two_meshes):
    """Tokens beyond a device's room would be dropped without a word."""
    long = [
        dataclasses.replace(one, rights=(*one.rights[:-1], one.rights[-1] + " bell" * 9 * (i % 2)))
        for i, one in enumerate(LISTS)
    ]
    maker, epochs = maker_of(folder, tmp_path, head=head, lists=long)
    for step in range(4 * epochs.steps):
        arrays = maker(step).arrays
        rooms = {part: room for part, room in maker.capacities._asdict().items() if room}
        assert rooms
        for part, room in rooms.items():
            visible = np.asarray(arrays[part][1])
            devices = visible.reshape(layout.batch_multiple(), -1).sum(1)
            assert 0 < devices.max() <= room


def test_the_text_grid_is_as_small_as_its_longest_choice_allows(mesh):
    grid = TextGrid.for_any([[5, 60, 50, 40], [3]], 3)
    assert (grid.rows, grid.piece_tokens) == (4, 192)
    assert TextGrid.for_any([[5, 6]], 8).rows == 2


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, float("nan")), (1.0,)])
def test_lists_with_invalid_weights_are_refused(folder, tmp_path, mesh, weights):
    with pytest.raises(ValueError, match=r"list 1 \('q'\).*give each text a weight above 0"):
        train(folder, tmp_path, lists=[LISTS[0], PairList("q", ("a", "b"), weights)])


def test_training_without_lists_is_refused(folder, tmp_path, mesh):
    with pytest.raises(ValueError, match="no list to train on"):
        train(folder, tmp_path, lists=[])
