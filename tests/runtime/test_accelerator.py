"""An accelerator is known by its device file and jax's plugin, or by $JAX_PLATFORMS."""

import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from ark_jax.runtime import accelerator


@pytest.mark.parametrize(
    ("platforms", "expected"), [("cpu", False), ("cpu,cuda", False), ("cuda,cpu", True)]
)
def test_the_first_named_platform_decides(platforms, expected, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert accelerator.has_accelerator() is expected


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [("nvidia", "plugin", True), ("nvidia", "absent", False), ("absent", "plugin", False)],
)
def test_a_device_needs_its_file_and_its_plugin(file, module, expected, tmp_path, monkeypatch):
    (tmp_path / "nvidia").touch()
    (tmp_path / "plugin.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    devices = {str(tmp_path / file): ("absent_too", module)}
    monkeypatch.setattr(accelerator, "DEVICE_FILES", devices)
    assert accelerator.has_accelerator() is expected


def test_looking_does_not_start_jax():
    code = (
        "from ark_jax.runtime import accelerator; accelerator.has_accelerator(); "
        "import sys; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0
