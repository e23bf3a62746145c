"""Kills at random moments of what no other test kills, and disks that end within its work."""

import os
import subprocess
import sys

import pytest
from support.paths import REPOSITORY


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "disks"), [(30, 0), (0, 14)], ids=["kills", "full disks"])
def test_interrupted_commands_leave_the_same_bytes(kills, disks):
    """`support.kills` interrupts commands, or fills their disk, and compares what they leave."""
    if disks and os.geteuid():
        pytest.skip("only root may mount a small disk")
    words = [sys.executable, "-m", "support.kills", str(kills), str(disks)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"},
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
