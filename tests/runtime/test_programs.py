"""Compiled programs are forgotten before they have taken all memory maps of a process."""

import jax
import jax.numpy as jnp
import pytest

from ark_jax.runtime import programs


@pytest.fixture
def maps(tmp_path, monkeypatch):
    """Says how many maps a process may have and how many it has."""

    def write(allowed: int, taken: int) -> None:
        (tmp_path / "sys/vm").mkdir(parents=True, exist_ok=True)
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "sys/vm/max_map_count").write_text(f"{allowed}\n")
        (tmp_path / "self/maps").write_text("7f00-7f01 r--p 0 0 0\n" * taken)
        monkeypatch.setattr(programs, "PROCESS", tmp_path)

    return write


def double():
    return jax.jit(lambda x: 2 * x)


@pytest.mark.parametrize(("taken", "kept"), [(50, 1), (51, 0)])
def test_compiled_programs_are_dropped_when_half_of_the_memory_maps_are_used(
    taken, kept, maps, capsys
):
    maps(100, taken)
    function = double()
    function(jnp.ones(3))
    programs.make_room()
    assert function._cache_size() == kept
    assert ("51 of 100 memory maps" in capsys.readouterr().out) == (not kept)
    assert function(jnp.ones(3)).tolist() == [2, 2, 2]


def test_compiled_programs_are_kept_if_memory_maps_cannot_be_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "PROCESS", tmp_path / "nowhere")
    function = double()
    function(jnp.ones(3))
    programs.make_room()
    assert function._cache_size() == 1


def test_memory_maps_of_this_system_are_counted(monkeypatch):
    """With a share of nothing, what /proc says is too much already."""
    if not (programs.PROCESS / "self/maps").exists():
        pytest.skip("no /proc/self/maps: this is not Linux")
    monkeypatch.setattr(programs, "SHARE", 0.0)
    function = double()
    function(jnp.ones(3))
    programs.make_room()
    assert function._cache_size() == 0
