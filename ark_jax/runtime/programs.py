"""Compiled programs. A process can hold only a limited number."""

import gc
from pathlib import Path

import jax

from ark_jax.runtime.log import say

PROCESS = Path("/proc")
SHARE = 0.5  # of the maps that a process may have


def make_room() -> None:
    """Forgets all compiled programs if they have taken half of the process's memory maps.

    On a CPU a program of a small language model takes some 150 maps. Linux allows a process 65,530
    by default, and the compiler crashes if there are no more. Programs that are needed again are
    compiled again. Call it before work in shapes that may be new.
    """
    if jax.default_backend() != "cpu":
        return
    try:
        allowed = int((PROCESS / "sys/vm/max_map_count").read_text())
        with (PROCESS / "self/maps").open("rb") as file:
            taken = sum(1 for _ in file)
    except OSError:  # not Linux
        return
    if taken > SHARE * allowed:
        say(f"  {taken:,} of {allowed:,} memory maps are taken: programs are compiled again")
        jax.clear_caches()
        gc.collect()
