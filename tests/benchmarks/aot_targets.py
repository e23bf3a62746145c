"""Machines that are not here: TPUs for libtpu's compiler, H100s for that of jax's CUDA plugin."""

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

# libtpu looks for a TPU of this host, and for the server that describes a cloud machine.
os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}

import jax
from jax.experimental import topologies

from ark_jax import layout
from ark_jax.train import memory


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind; `topology` is as `get_topology_desc` names it."""

    platform: str
    topology: str
    devices: int


TARGETS = {
    "v5e-8": Target("tpu", "v5e:2x4", 8),
    "v5e-256": Target("tpu", "v5e:16x16", 256),
    "v6e-256": Target("tpu", "v6e:16x16", 256),
    "v5p-64": Target("tpu", "v5p:4x4x4", 64),
    "h100": Target("gpu", "1x1x1", 1),
    "h100x8": Target("gpu", "1x8x1", 8),
}
H100 = Path(__file__).with_name("h100.txtpb")


def absence(target: Target) -> str:
    """Why the target's compiler cannot run here; "" if it can."""
    found = importlib.util.find_spec
    if target.platform == "tpu":
        return "" if found("libtpu") else "no libtpu: pip install -e '.[aot]'"
    plugins = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
    has_plugin = found("jax_plugins") and any(map(found, plugins))
    return "" if has_plugin else "no CUDA plugin of jax: pip install -e '.[aot]'"


def described(target: Target) -> list:
    """The target's devices, which can be compiled for and hold nothing."""
    if target.platform == "tpu":
        return topologies.get_topology_desc(target.topology, "tpu").devices
    config = H100.read_text(encoding="utf-8")
    return topologies.get_topology_desc(target.topology, "cuda", target_config=config).devices


@contextlib.contextmanager
def entered(target: Target) -> Iterator[None]:
    """The package's default mesh over the target's devices, which jax calls its own inside."""
    devices = described(target)
    kind = devices[0].device_kind
    size = next(size for pattern, size in memory.MEMORY.items() if re.fullmatch(pattern, kind))
    with contextlib.ExitStack() as stack:
        enter = lambda *where, **what: stack.enter_context(mock.patch.object(*where, **what))
        enter(jax, "devices", lambda *_: devices)
        enter(jax, "local_devices", lambda **_: devices)
        enter(jax, "device_count", lambda *_: len(devices))
        enter(jax, "default_backend", lambda: target.platform)
        enter(memory, "_local_device_memory", lambda: size)
        stack.enter_context(jax.set_mesh(layout.make_mesh()))
        yield
