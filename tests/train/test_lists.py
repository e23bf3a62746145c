"""Which negatives a list has in each epoch: first ones, chosen ones, and what is stored."""

import dataclasses

import numpy as np
import pytest

from ark_jax.train.lists import ListEpochs, PairList, choose_partners

LIST = PairList("q", ("right", "end", "a", "b", "c"), (1.0, 1.0, 2.0, 0.5, 1.0), required=1)
SHORT = PairList("p", ("right", "a"), (1.0, 1.0))
SCORES = np.array([9.0, 0.0, 1.0, 3.0, 3.0])


def test_without_scores_the_first_negatives_are_chosen():
    assert choose_partners(LIST, None, 3).tolist() == [0, 1, 2, 3]
    assert choose_partners(LIST, None, 0).tolist() == [0, 1, 2, 3, 4]


def test_required_negatives_come_before_the_highest_scores():
    assert choose_partners(LIST, SCORES, 3).tolist() == [0, 1, 3, 4]  # ties in the list's order
    assert choose_partners(dataclasses.replace(LIST, required=0), SCORES, 3).tolist() == [
        0,
        3,
        4,
        2,
    ]
    assert choose_partners(LIST, SCORES, 1).tolist() == [0, 1]


def epochs(folder, score=None, negatives=2) -> ListEpochs:
    return ListEpochs(
        [LIST, SHORT], batch=1, negatives=negatives, seed=5, folder=folder, score=score
    )


def chosen_in(list_epochs: ListEpochs, epoch: int, trainable=None) -> dict[int, list[int]]:
    steps = range(epoch * list_epochs.steps, (epoch + 1) * list_epochs.steps)
    return {k: x.tolist() for step in steps for k, x in list_epochs.step(step, trainable)}


def test_every_epoch_has_every_list_once_in_another_order(tmp_path):
    plain = epochs(tmp_path)
    orders = [[int(plain.numbers(2 * epoch + i)[0]) for i in range(2)] for epoch in range(8)]
    assert all(sorted(order) == [0, 1] for order in orders)
    assert len(set(map(tuple, orders))) == 2


def test_epochs_without_a_scorer_use_the_first_negatives_and_keep_no_file(tmp_path):
    assert chosen_in(epochs(tmp_path), 3) == {0: [0, 1, 2], 1: [0, 1]}
    assert not list(tmp_path.iterdir())


def test_later_epochs_use_the_negatives_that_the_scorer_ranks_highest(tmp_path):
    asked = []
    score = lambda trainable: asked.append(trainable) or [SCORES * trainable, np.zeros(2)]
    list_epochs = epochs(tmp_path, score)
    assert list_epochs.may_change and not epochs(tmp_path, score, negatives=0).may_change
    assert chosen_in(list_epochs, 0, 1.0)[0] == [0, 1, 2]
    assert chosen_in(list_epochs, 1, 1.0) == {0: [0, 1, 3], 1: [0, 1]}
    assert chosen_in(list_epochs, 2, -1.0)[0] == [0, 1, 2]
    assert asked == [1.0, -1.0]  # once an epoch


def test_a_resumed_run_keeps_the_chosen_negatives(tmp_path):
    chosen_in(epochs(tmp_path, lambda _: [SCORES, np.zeros(2)]), 1)
    refuse = lambda _: pytest.fail("the choice of an epoch that has begun is made again")
    resumed = epochs(tmp_path, refuse)
    numbers = resumed.numbers(3).tolist()
    expected = {0: [0, 1, 3], 1: [0, 1]}
    assert [(k, x.tolist()) for k, x in resumed.step(3, None)] == [
        (k, expected[k]) for k in numbers
    ]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "of other lists"])
def test_a_missing_or_damaged_file_of_negatives_is_named(tmp_path, damage):
    chosen_in(epochs(tmp_path, lambda _: [SCORES, np.zeros(2)]), 1)
    path = tmp_path / "negatives_2.parquet"
    content = path.read_bytes()
    changed = {
        "missing": b"",
        "cut": content[:-20],
        "flipped": content[:40] + bytes([content[40] ^ 1]) + content[41:],
        "of other lists": content,
    }
    path.write_bytes(changed[damage])
    if damage == "missing":
        path.unlink()
    lists = [LIST, SHORT, SHORT] if damage == "of other lists" else [LIST, SHORT]
    refuse = lambda _: pytest.fail("the choice is made again")
    resumed = ListEpochs(lists, batch=1, negatives=2, seed=5, folder=tmp_path, score=refuse)
    with pytest.raises(ValueError, match=r"negatives_2\.parquet .*delete .*checkpoints"):
        resumed.step(resumed.steps + 1, None)
