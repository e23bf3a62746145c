"""The small selector: its scores, its draws in any company, and its folder."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ark_jax.models import hf
from ark_jax.select import plackett_luce as pl
from ark_jax.select.pools import Pool
from ark_jax.select.scorer import Selector

WIDTH = 6


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def pool(number: int, candidates: int = 5) -> Pool:
    rng = np.random.default_rng([7, number])
    vectors = unit(rng.normal(size=(candidates + 1, WIDTH)))
    return Pool(number, vectors[0], vectors[1:])


def trained(seed: int = 3) -> Selector:
    """A selector all of whose weights count."""
    selector = Selector.new(WIDTH, rank=2, seed=seed)
    rng = np.random.default_rng(seed)
    for _, value in hf.named_parameters(selector.model):
        noise = rng.normal(0, 0.2, value[...].shape).astype(np.float32)
        value[...] = 0.2 * value[...] + noise
    return selector


def scores_by_hand(selector: Selector, one: Pool, drawn: list[int]) -> np.ndarray:
    weights = {name: np.asarray(x[...]) for name, x in hf.named_parameters(selector.model)}
    q, d = one.question.astype(float), one.passages.astype(float)
    scores = weights["cosine"] * 10 * d @ q
    scores -= weights["order"] * np.log(1 + np.arange(len(d)))
    scores += d @ weights["passage"] @ (weights["question"].T @ q)
    for number in drawn:
        scores += weights["similarity"] * 10 * d @ d[number] / len(drawn)
    return scores


def log_prob_by_hand(selector: Selector, one: Pool, chosen: list[int]) -> float:
    total = 0.0
    for place, number in enumerate(chosen):
        left = [i for i in range(len(one.passages)) if i not in chosen[:place]]
        scores = scores_by_hand(selector, one, chosen[:place])
        total += scores[number] - np.logaddexp.reduce(scores[left])
    return total


def test_log_probabilities_of_drawn_sets_equal_the_formula(mesh):
    selector = trained()
    for one in (pool(1), pool(2, 7)):
        drawn = selector.select(one.question, one.passages, k=3, draws=6, seed=5)
        assert len(drawn.sets) == len(drawn.log_probs) == 6
        assert len({tuple(chosen) for chosen in drawn.sets}) > 1
        for chosen, value in zip(drawn.sets, drawn.log_probs, strict=True):
            by_hand = log_prob_by_hand(selector, one, chosen.tolist())
            assert value == pytest.approx(by_hand, abs=2e-5)


def test_the_best_set_has_the_highest_score_at_each_place(mesh):
    selector = trained()
    one = pool(4, 6)
    chosen: list[int] = []
    for _ in range(4):
        scores = scores_by_hand(selector, one, chosen)
        scores[chosen] = -np.inf
        chosen.append(int(scores.argmax()))
    (best,) = selector.best([one], k=4)
    assert best.sets[0].tolist() == chosen != sorted(chosen)
    assert best.log_probs[0] == pytest.approx(log_prob_by_hand(selector, one, chosen), abs=2e-5)


def test_a_new_selector_draws_by_cosine(mesh):
    one = pool(1, 9)
    (best,) = Selector.new(WIDTH, seed=2).best([one], k=9)
    np.testing.assert_array_equal(best.sets[0], np.argsort(-one.passages @ one.question))


def test_draws_depend_neither_on_other_questions_nor_on_the_mesh(any_mesh):
    selector = trained()
    alone = selector.draw([pool(3)], k=3, draws=4, seed=9, step=2)[0]
    pools = [pool(number, 4 + number) for number in range(9)]
    together = selector.draw([*pools, pool(3)], k=3, draws=6, seed=9, step=2)[-1]
    np.testing.assert_array_equal(np.stack(together.sets)[:4], np.stack(alone.sets))
    np.testing.assert_allclose(together.log_probs[:4], alone.log_probs, atol=1e-5)
    np.testing.assert_array_equal(np.stack(alone.sets), DRAWS)
    np.testing.assert_allclose(alone.log_probs, LOG_PROBS, atol=1e-5)
    for changed in ({"seed": 8}, {"step": 3}):
        place = {"seed": 9, "step": 2} | changed
        assert (np.stack(selector.draw([pool(3)], k=3, draws=4, **place)[0].sets) != DRAWS).any()


DRAWS = [[0, 2, 3], [2, 0, 3], [2, 0, 3], [3, 2, 0]]
LOG_PROBS = [-1.659901, -0.870290, -0.870290, -2.245646]


def test_all_candidates_are_drawn_if_there_are_fewer_than_k(mesh):
    drawn = trained().draw([pool(1, 3), pool(2, 1), pool(3, 8)], k=5, draws=2, seed=0)
    assert [[len(chosen) for chosen in one.sets] for one in drawn] == [[3, 3], [1, 1], [5, 5]]
    assert sorted(drawn[0].sets[0].tolist()) == [0, 1, 2]
    assert drawn[1].log_probs.tolist() == [0, 0]
    assert pl.NOT_DRAWN not in np.concatenate([*drawn[0].sets, *drawn[2].sets])
    assert trained().draw([], k=5, draws=2, seed=0) == []


@pytest.mark.parametrize(
    ("question", "passages", "words"),
    [
        (np.ones(WIDTH), np.ones((0, WIDTH)), "question 3: 0 passages"),
        (np.ones(WIDTH), np.ones((2, 4)), r"\(2, 4\).*vectors of 6 numbers: use the retriever"),
        (np.ones(4), np.ones((2, WIDTH)), "vectors of 6 numbers"),
        (np.ones(WIDTH), np.full((2, WIDTH), np.nan), "question 3: a vector holds NaN"),
        (np.full(WIDTH, np.inf), np.ones((2, WIDTH)), "question 3: a vector holds NaN"),
    ],
)
def test_pools_that_cannot_be_scored_are_refused(question, passages, words, mesh):
    selector = trained()
    broken = object.__new__(Pool)
    for name, value in (("number", 3), ("question", question), ("passages", passages)):
        object.__setattr__(broken, name, value.astype(np.float32) if name != "number" else value)
    with pytest.raises(ValueError, match=words):
        selector.draw([pool(1), broken], k=2, draws=2, seed=0)
    with pytest.raises(ValueError, match="k=0: a set has at least one document"):
        selector.draw([pool(1)], k=0, draws=2, seed=0)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_saved_selector_is_loaded_unchanged(rank, mesh, tmp_path):
    selector = Selector.new(WIDTH, rank=rank, seed=1)
    selector.model.order[...] = selector.model.order[...] + 0.25
    selector.save_pretrained(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "model.safetensors",
        "selector.json",
    ]
    again = Selector.from_pretrained(tmp_path / "a")
    again.save_pretrained(tmp_path / "b")
    for name in ("model.safetensors", "selector.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.digest() == selector.digest() != Selector.new(WIDTH, rank=rank).digest()
    one = pool(1)
    first, second = (s.select(one.question, one.passages, k=2, seed=4) for s in (selector, again))
    np.testing.assert_array_equal(np.stack(first.sets), np.stack(second.sets))


def edit(path, **changes):
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))


def test_a_damaged_selector_folder_is_refused_with_file_and_field(mesh, tmp_path):
    trained().save_pretrained(tmp_path / "good")
    settings, weights = "selector.json", "model.safetensors"

    def change_tensor(folder, name, value):
        tensors = load_file(folder / weights)
        save_file(
            {k: v for k, v in (tensors | {name: value}).items() if v is not None}, folder / weights
        )

    damages = {
        "no selector.json; give a folder": lambda f: (f / settings).unlink(),
        "not JSON": lambda f: (f / settings).write_text("{"),
        "width='6': must be an integer": lambda f: edit(f / settings, width="6"),
        "rank=-1: must be an integer": lambda f: edit(f / settings, rank=-1),
        "rank=True: must be": lambda f: edit(f / settings, rank=True),
        "'rank'": lambda f: edit(f / settings, rank=None),
        r"passage of shape \(6, 2\) must be finite and of shape \(6, 3\)": lambda f: edit(
            f / settings, rank=3
        ),
        r"tensor cosine .* must be finite": lambda f: change_tensor(
            f, "cosine", np.array(np.nan, np.float32)
        ),
        "tensor order is missing": lambda f: change_tensor(f, "order", None),
        r"no model.safetensors": lambda f: (f / weights).unlink(),
    }
    for number, (words, damage) in enumerate(damages.items()):
        folder = shutil.copytree(tmp_path / "good", tmp_path / str(number))
        damage(folder)
        with pytest.raises((ValueError, FileNotFoundError), match=words) as error:
            Selector.from_pretrained(folder)
        assert str(folder) in str(error.value)
