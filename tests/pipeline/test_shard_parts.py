"""Shards whose results lie in files: what a killed run has left is not made again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ark_jax.pipeline import parts
from ark_jax.runtime import map_shards


@pytest.fixture
def one_process(monkeypatch):
    monkeypatch.setattr(map_shards, "cores", lambda: 1)


class Work:
    """Bytes of a shard; counts what it worked on, and is killed after so many shards."""

    def __init__(self, most: int):
        self.most, self.done = most, []

    def __call__(self, shard: int) -> bytes:
        if len(self.done) == self.most:
            raise KeyboardInterrupt
        self.done.append(shard)
        return b"result %d" % shard


def run(folder, shards: int, most: int = 1000) -> tuple[list[bytes], list[int]]:
    work, results = Work(most), []
    try:
        results += parts.map_stored(folder, "facts", lambda: work, iter(range(shards)))
    except KeyboardInterrupt:
        results = None
    return results, work.done


@settings(max_examples=25)
@given(shards=st.integers(0, 12), kills=st.lists(st.integers(0, 5), max_size=3))
def test_killed_shards_are_completed_without_repeating_any(tmp_path_factory, shards, kills):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(map_shards, "cores", lambda: 1)
        folder, shards_done = tmp_path_factory.mktemp("stage"), []
        for limit in [*kills, 1000]:
            results, done = run(folder, shards, limit)
            shards_done += done
        assert results == [b"result %d" % i for i in range(shards)]
        if shards >= map_shards.FEW:
            assert sorted(shards_done) == list(range(shards))
        parts.forget_shards(folder)
        assert not list(folder.iterdir())


@pytest.mark.usefixtures("one_process")
def test_a_damaged_shard_result_is_computed_again(tmp_path, capsys):
    first, _ = run(tmp_path, 6)
    path = tmp_path / parts.FOLDER / "facts-000002.bin"
    path.write_bytes(path.read_bytes().replace(b"2", b"3"))
    again, done = run(tmp_path, 6)
    assert again == first and done == [2]
    assert "facts-000002.bin has been damaged: it is made again" in capsys.readouterr().out
