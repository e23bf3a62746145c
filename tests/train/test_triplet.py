"""Training of two towers on three levels: masks, batches, meshes, resume, what is learnt."""

import dataclasses
import os
import signal

import jax
import numpy as np
import pytest
from support import tiny
from support.fact_graphs import FACTS, row_of

from ark_jax import layout
from ark_jax.graph.levels import Levels
from ark_jax.graph.triples import Triples, triple_texts
from ark_jax.models.retriever import Retriever
from ark_jax.models.towers import DualEncoder
from ark_jax.runtime import preemption
from ark_jax.train import fit, triplet
from ark_jax.train.config import TripletConfig

GRAPH = Triples.from_triples(FACTS)
QUESTIONS = triplet.MaskedQuestions(
    [f"what does {head} {relation}?" for head, relation, _ in GRAPH],
    np.arange(len(GRAPH)),
    np.ones(len(GRAPH), bool),
)
CONFIG = TripletConfig(
    batch=4,
    loss="triplet",
    margins=(0.2, 0.3),
    negatives="random",
    hub=0,
    save_every=100,
    remat="products",
)
TRAINING = {"epochs": 2, "learning_rate": 1e-3, "seed": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("retriever"), "bert", tokenizer="cls")
    return tiny.sentence_transformer(path, pooling="mean")


def train(folder, run, *, mesh=(1, 1, 1), two=False, **changes):
    """Trains a copy of the tiny retriever; returns towers and curve."""
    run.mkdir(exist_ok=True)
    with jax.set_mesh(layout.make_mesh(mesh)):
        base = Retriever.from_pretrained(str(folder))
        towers = DualEncoder(base, dataclasses.replace(base) if two else base)
        settings = {name: changes.pop(name, value) for name, value in TRAINING.items()}
        config = dataclasses.replace(CONFIG, **changes)
        texts = lambda rows: triple_texts(GRAPH, rows)
        return triplet.train(towers, GRAPH, QUESTIONS, texts, config, fit.Run(run), **settings)


def masks(question_fact: tuple, drawn: list[tuple], **changes) -> dict[str, list[str]]:
    """The facts at each level of one question among a batch's triples."""
    config = dataclasses.replace(CONFIG, batch=1, **changes)
    row = row_of(GRAPH, question_fact)
    question = triplet.MaskedQuestions(["?"], np.array([row]), np.array([True]))
    epochs = triplet.Epochs(GRAPH, question, config, epochs=2, seed=3)
    levels = Levels(*(np.array([row_of(GRAPH, fact)]) for fact in (question_fact, *drawn)))
    rows = np.arange(len(GRAPH))
    by_name = triplet.pair_masks(epochs, np.array([0]), levels, rows)
    facts = ["".join(fact) for fact in GRAPH]
    return {
        name: [fact for fact, marked in zip(facts, mask[0], strict=True) if marked]
        for name, mask in by_name.items()
    }


ASKED, NEIGHBOUR, NEGATIVE = FACTS[0], ("a", "s", "e"), ("f", "r", "g")


def test_a_mined_negative_may_share_an_entity_with_its_positive():
    """With the margins, which otherwise have none of these."""
    drawn, mined = (
        masks(ASKED, [NEGATIVE, NEIGHBOUR], negatives=name)["negative"]
        for name in ("batch", "my_miners:nearest")
    )
    assert set(drawn) | {"ase"} == set(mined)
    question = triplet.MaskedQuestions(["?", "?"], np.arange(2), np.ones(2, bool))
    config = dataclasses.replace(CONFIG, negatives="my_miners:nearest")
    epochs = triplet.Epochs(GRAPH, question, config, epochs=3, seed=3, mined=[[4, 5], []])
    taken = [epochs.draw(epoch)[1].negatives.tolist() for epoch in range(3)]
    assert taken == [[4, -1], [5, -1], [4, -1]]


def test_the_masks_hold_the_drawn_triples_by_level():
    by_level = masks(ASKED, [NEIGHBOUR, NEGATIVE])
    assert by_level == {"positive": ["arb"], "neighbour": ["ase"], "negative": ["frg"]}


def test_batch_negatives_share_no_entity_with_the_positive():
    by_level = masks(ASKED, [NEIGHBOUR, NEGATIVE], negatives="batch")
    assert by_level["negative"] == ["cse", "frg"] and by_level["neighbour"] == ["ase"]


def test_info_nce_uses_the_whole_batch_without_siblings():
    by_level = masks(ASKED, [NEIGHBOUR, NEGATIVE], negatives="batch", loss="nce")
    assert sorted(by_level["negative"]) == ["ase", "cse", "drb", "esb", "frg"]
    plain = masks(ASKED, [NEIGHBOUR, NEGATIVE], negatives="batch", loss="nce", siblings="neighbour")
    assert sorted(plain["negative"]) == sorted("".join(fact) for fact in FACTS if fact != ASKED)


@pytest.fixture(scope="module")
def one_tower(folder, tmp_path_factory):
    """A run of one model for questions and facts, with other questions' facts as negatives."""
    run = tmp_path_factory.mktemp("one")
    return train(folder, run, epochs=8, loss="triplet", negatives="batch")


@pytest.fixture(scope="module")
def two_towers(folder, tmp_path_factory):
    """A run of two models that nothing stopped."""
    return train(folder, tmp_path_factory.mktemp("two"), two=True)


@pytest.mark.parametrize("loss", ["triplet", "nce"])
def test_training_lowers_the_triplet_loss(folder, tmp_path, loss, one_tower, mesh):
    tuned, _, curve = one_tower
    if loss == "nce":
        tuned, _, curve = train(folder, tmp_path, epochs=8, loss=loss, negatives="batch")
    first, last = (np.mean([row["loss"] for row in part]) for part in (curve[:3], curve[-3:]))
    assert last < 0.7 * first
    assert tuned.is_one and len(curve) == 8 * 3


def test_only_two_towers_are_trained_apart(folder, one_tower, two_towers, mesh):
    text = ["what does a r?"]
    vectors = lambda tower: tower.encode(text, kind="query")
    one, two = one_tower.model, two_towers.model
    assert one.query is one.document
    assert np.abs(vectors(two.query) - vectors(two.document)).max() > 1e-3
    base = Retriever.from_pretrained(str(folder))
    for tower in (one.query, two.query, two.document):
        assert np.abs(vectors(tower) - vectors(base)).max() > 1e-3


@pytest.mark.parametrize(
    "shape",
    [
        (2, 2, 2),
        pytest.param((1, 8, 1), marks=pytest.mark.slow),
        pytest.param((4, 1, 2), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_losses_on_a_mesh_equal_those_on_one_device(folder, tmp_path, shape, two_towers):
    expected = two_towers.curve
    _, _, curve = train(folder, tmp_path, two=True, mesh=shape)
    np.testing.assert_allclose(
        [row["loss"] for row in curve], [row["loss"] for row in expected], rtol=2e-4
    )
    assert len({round(row["loss"], 4) for row in expected}) > 3


def test_a_resumed_run_gives_the_same_bytes(folder, tmp_path, at_step, two_towers):
    wanted, _, curve = two_towers
    at_step(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(preemption.Preempted, match="step 3 of 6"), preemption.raise_signals():
        train(folder, tmp_path / "stopped", two=True)
    at_step(0, None)
    resumed, _, again = train(folder, tmp_path / "stopped", two=True)
    assert again == curve
    for tower, expected in ((resumed.query, wanted.query), (resumed.document, wanted.document)):
        for x, y in zip(*map(jax.tree.leaves, (tower.model, expected.model)), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_batch_encodes_each_triple_once(folder, mesh):
    epochs = triplet.Epochs(GRAPH, QUESTIONS, CONFIG, epochs=2, seed=3)
    tokens = [[1, 2]] * len(QUESTIONS)
    base = Retriever.from_pretrained(str(folder))
    maker = triplet.TripletBatches.create(
        epochs, tokens, {row: [1, 2, 3] for row in range(len(GRAPH))}, (base.cfg, base.cfg)
    )
    for step in range(len(epochs)):
        batch = maker(step)
        assert len(batch.ids["triples"]) == len(set(batch.ids["triples"]))
        positive = np.asarray(batch.arrays["positive"])
        assert positive.sum() == len(batch.ids["questions"])


def test_epochs_differ_but_each_draw_is_repeatable():
    epochs = triplet.Epochs(GRAPH, QUESTIONS, CONFIG, epochs=2, seed=3)
    order, levels = epochs.draw(0)
    other_order, other = epochs.draw(1)
    assert not np.array_equal(order, other_order)
    assert not np.array_equal(levels.negatives, other.negatives)
    again_order, again = epochs.draw(0)
    assert np.array_equal(order, again_order)
    assert np.array_equal(levels.neighbours, again.neighbours)


def test_training_without_questions_is_refused(folder, tmp_path, mesh):
    base = Retriever.from_pretrained(str(folder))
    none = triplet.MaskedQuestions([], np.zeros(0, np.int64), np.zeros(0, bool))
    with pytest.raises(ValueError, match="no question to train on"):
        triplet.train(
            DualEncoder(base, base),
            GRAPH,
            none,
            lambda rows: triple_texts(GRAPH, rows),
            CONFIG,
            fit.Run(tmp_path),
            **TRAINING,
        )
