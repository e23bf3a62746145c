"""launch/: the shell scripts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import REPOSITORY

LAUNCH = REPOSITORY / "launch"
SCRIPTS = ("local.sh", "gpu.sh", "slurm.sh", "tpu_pod.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_launch_scripts_are_clean_and_set_nothing_of_the_method(script):
    path = LAUNCH / script
    text = path.read_text()
    assert os.access(path, os.X_OK) and len(text.splitlines()) < 60
    assert "set -euo pipefail" in text and not re.search(r"--config\.\w", text)
    subprocess.run(["bash", "-n", path], check=True)
    environment_folder = str(Path(sys.executable).parent)
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=environment_folder)
    if not shellcheck:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
