"""Finished runs of the recipes on tiny worlds: each is made once for all test modules."""

import dataclasses
from pathlib import Path

import filelock
import pytest
from support import bar_world, gpr_world, star_world, world

WORLDS = {"ark": world, "gpr": gpr_world, "star": star_world, "bar_rag": bar_world}


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """An uninterrupted run; a test that changes it copies it first."""

    world: Path
    workdir: Path
    said: str


def finished_run(recipe: str, factory: pytest.TempPathFactory) -> FinishedRun:
    """The finished run of a recipe, for which the workers of pytest-xdist wait for each other."""
    session = factory.getbasetemp()
    if session.name.startswith("popen-"):  # that of one worker lies in that of all
        session = session.parent
    root = session / "finished-runs" / recipe
    root.mkdir(parents=True, exist_ok=True)
    run = root / "finished"
    with filelock.FileLock(root / "lock"):
        if not (root / "said").exists():
            of_world = WORLDS[recipe]
            of_world.make_world(root)
            # Tests compare the bytes of the others with those of a user's process.
            call = of_world.call_here if recipe == "bar_rag" else of_world.call
            done = call(root, run)
            assert done.returncode == 0, done.stdout + done.stderr
            (root / "said").write_text(done.stdout, encoding="utf-8")
    return FinishedRun(root, run, (root / "said").read_text(encoding="utf-8"))
