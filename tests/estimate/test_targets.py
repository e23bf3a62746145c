"""Devices that are not here: their names, their mesh, what is published of them."""

import jax
import pytest

from ark_jax import layout
from ark_jax.estimate import targets
from ark_jax.runtime import accelerator, device_memory
from ark_jax.train import flops, memory

NAMES = {
    "v5e-1": "v5e:1x1",
    "v5e-4": "v5e:2x2",
    "v5e-8": "v5e:2x4",
    "v5e-256": "v5e:16x16",
    "v6e-128": "v6e:8x16",
    "v4-8": "v4:2x2x2",
    "v5p-4": "v5p:2x2x1",
    "v5p-16": "v5p:2x2x4",
    "v5p-64": "v5p:4x4x4",
    "h100": "1x1x1",
    "h100x8": "1x1x8",
    "a100x4": "1x1x4",
}


def test_a_name_says_the_topology():
    assert {name: targets.target(name).topology for name in NAMES} == NAMES


@pytest.mark.parametrize("name", ["v5e", "v5e-0", "v5e-12", "h100x16", "h100x3", "b200", ""])
def test_another_name_is_refused_with_examples(name):
    with pytest.raises(ValueError, match=r"v5e-256.*h100x8"):
        targets.target(name)


@pytest.mark.parametrize("kind", [*targets.TPUS, *targets.GPUS])
def test_the_numbers_of_every_kind_are_published(kind):
    name = targets.target(kind if kind in targets.GPUS else f"{kind}-8").device.kind
    assert flops.peak(name)
    for table in (device_memory.MEMORY, memory.LINKS):
        assert device_memory.published(table, name)


def test_formulas_are_about_the_devices_that_are_assumed():
    before = accelerator.device_in_use()
    with targets.assumed(targets.target("v5e-256"), (1, -1, 4)):
        assert layout.mesh_size("fsdp") == 64 and layout.batch_multiple() == 64
        assert accelerator.device_in_use() == accelerator.find_device()
        assert accelerator.device_in_use().kind == "TPU v5 lite"
        assert memory.device_memory() == 16e9
    assert accelerator.device_in_use() == before and before.platform == jax.default_backend()
    with (
        pytest.raises(ValueError, match="wants 16 devices, 8 are present"),
        targets.assumed(targets.target("h100x8"), (1, 1, 16)),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("v5e-8", "libtpu is not installed: pip install 'ark_jax[aot]'"),
        ("h100", "jax_cuda13_plugin is not installed: pip install 'ark_jax[aot]'"),
        ("a100", "no description of NVIDIA A100-SXM4-80GB for its compiler is known"),
    ],
)
def test_what_a_compiler_lacks_is_said(name, reason, monkeypatch):
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda _: None)
    assert targets.absence(targets.target(name)) == reason
