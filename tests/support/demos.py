"""Runs the packaged demos as a user does."""

import os
import subprocess
import sys
from pathlib import Path

from support.paths import REPOSITORY


def run_demo(recipe: str, folder: Path) -> Path:
    """Runs the demo of a recipe in a folder; its workdir."""
    done = subprocess.run(
        [sys.executable, "-m", "ark_jax", "demo", f"--recipe={recipe}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / f"ark_demo_{recipe}"
