"""A map over shards in worker processes: order, errors, lost workers, and what ends them."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shard_work
from support.gone import wait_until_gone
from support.paths import REPOSITORY

from ark_jax.runtime import map_shards


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_shards_hold_every_item_in_order_up_to_their_size(items, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_shards, "SHARD_SIZE", size)
        shards = list(map_shards.shards_of(items, lambda item: item))
    assert [item for shard in shards for item in shard] == items
    for shard in shards[:-1]:
        assert sum(shard) >= size > sum(shard[:-1])


def test_workers_return_results_in_order_without_jax_or_output(capfd):
    shards, processes, jax = zip(*shard_work.pool(shard_work.observer, range(12)), strict=True)
    assert shards == tuple(range(12)) and not any(jax)
    assert len(set(processes)) == 2 and os.getpid() not in processes
    assert capfd.readouterr() == ("", "")


def test_few_shards_are_computed_in_this_process():
    results = shard_work.pool(shard_work.observer, range(map_shards.FEW - 1))
    assert {process for _, process, _ in results} == {os.getpid()}


def test_a_lost_worker_loses_no_shard(tmp_path):
    squares = shard_work.pool(shard_work.mortal, range(9), str(tmp_path), 4, 2)
    assert squares == [i * i for i in range(9)]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_shard_that_kills_every_worker_ends_the_run(tmp_path):
    with pytest.raises(RuntimeError, match=r"shard 2: its worker process ended 3 times.*memory"):
        shard_work.pool(shard_work.mortal, range(5), str(tmp_path), 1, 9)


def test_an_error_of_a_worker_is_raised_unchanged():
    with pytest.raises(ValueError, match=r"^documents.jsonl:3: text: is empty; fill it in$"):
        shard_work.pool(shard_work.refuser, range(9))


def test_workers_end_with_their_process_and_do_not_rerun_its_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(shard_work.SCRIPT)
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    workers = [int(process.stderr.readline()) for _ in range(2)]
    process.kill()
    assert process.communicate()[0] == "begun\n"
    for worker in workers:
        wait_until_gone(worker)
