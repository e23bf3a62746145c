"""An accelerator is known by its device file and jax's plugin, or by $JAX_PLATFORMS."""

import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from ark_jax.runtime import accelerator
from ark_jax.runtime.accelerator import Device


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Makes an `nvidia-smi` that prints a text; without it there is none."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(answer: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
        program.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("platforms", "expected"),
    [("cpu", "cpu"), ("cpu,cuda", "cpu"), ("cuda,cpu", "gpu"), ("rocm", "gpu"), ("tpu", "tpu")],
)
def test_the_first_named_platform_decides(platforms, expected, driver, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert accelerator.find_device() == Device(expected)


@pytest.mark.parametrize(
    ("file", "module", "expected"),
    [("tpu", "plugin", "tpu"), ("tpu", "absent", "cpu"), ("absent", "plugin", "cpu")],
)
def test_a_device_needs_its_device_file_and_its_plugin(
    file, module, expected, tmp_path, monkeypatch
):
    (tmp_path / "tpu").touch()
    (tmp_path / "plugin.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    devices = {str(tmp_path / file): ("tpu", ("absent_too", module))}
    monkeypatch.setattr(accelerator, "DEVICE_FILES", devices)
    assert accelerator.find_device() == Device(expected)


@pytest.mark.parametrize(
    ("answer", "capability", "suiting"),
    [
        ("9.0", 9.0, "bfloat16"),
        ("9.0\n7.5", 7.5, "float32"),  # the slowest of several decides
        ("12.1", 12.1, "bfloat16"),
        ("[N/A]", 0.0, "bfloat16"),
        ("NVIDIA-SMI has failed because it could not talk to version 535.1", 0.0, "bfloat16"),
    ],
)
def test_the_float_type_follows_the_capability_of_the_gpu(
    answer, capability, suiting, driver, monkeypatch
):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    driver(answer)
    device = accelerator.find_device()
    assert device == Device("gpu", capability)
    assert accelerator.float_type("auto", device) == suiting


@pytest.mark.parametrize(
    "device", [Device("cpu"), Device("gpu", 7.0), Device("gpu", 9.0), Device("tpu")], ids=str
)
def test_a_named_float_type_is_kept_on_every_device(device):
    assert accelerator.float_type("float16", device) == "float16"


@pytest.mark.parametrize(("platform", "expected"), [("cpu", "float32"), ("tpu", "bfloat16")])
def test_the_automatic_float_type_depends_on_the_device(platform, expected):
    assert accelerator.float_type("auto", Device(platform)) == expected


def test_finding_the_device_does_not_import_jax():
    code = (
        "from ark_jax.runtime import accelerator; accelerator.find_device(); "
        "import sys; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0
