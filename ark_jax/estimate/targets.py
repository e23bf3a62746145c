"""Machines that are not here, by name, as `ark-jax plan --device` takes them, and their compilers.

libtpu compiles for TPUs on a machine that has none, and jax's CUDA plugin for an H100. Both come
with `pip install 'ark_jax[aot]'`; only `compiling_for` needs them.
"""

import contextlib
import dataclasses
import importlib.resources
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from unittest import mock

import jax
from jax.sharding import AbstractMesh, AxisType

from ark_jax import layout
from ark_jax.runtime.accelerator import Device, assuming

# libtpu looks for a TPU of this host, and for the server that describes a cloud machine.
ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}
# The name of a kind -> the device, and the axes of a TPU's torus.
TPUS = {
    "v4": (Device("tpu", kind="TPU v4"), 3),
    "v5e": (Device("tpu", kind="TPU v5 lite"), 2),
    "v5p": (Device("tpu", kind="TPU v5"), 3),
    "v6e": (Device("tpu", kind="TPU v6 lite"), 2),
}
GPUS = {
    "a100": Device("gpu", 8.0, "NVIDIA A100-SXM4-80GB"),
    "h100": Device("gpu", 9.0, "NVIDIA H100 80GB HBM3"),
    "h200": Device("gpu", 9.0, "NVIDIA H200"),
}
HOST = 8  # GPUs of a machine; links between machines are slower


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind.

    Attributes:
        name: such as "v5e-256" or "h100x8".
        device: one of them.
        topology: as jax's `get_topology_desc` names it.
        count: how many; of TPUs, chips.
    """

    name: str
    device: Device
    topology: str
    count: int


def target(name: str) -> Target:
    """The devices of a name: `v5e-256` (chips of a TPU), `h100`, `h100x8` (GPUs of a machine).

    Raises:
        ValueError: no such devices.
    """
    tpu = re.fullmatch(rf"({'|'.join(TPUS)})-(\d+)", name)
    gpu = re.fullmatch(rf"({'|'.join(GPUS)})(?:x([1-{HOST}]))?", name)
    count = int((tpu or gpu)[2] or 1) if tpu or gpu else 0
    if count.bit_count() != 1:  # a torus of another size is a choice that a name does not make
        raise ValueError(
            f"--device={name}: give a TPU with a power of two of chips ({', '.join(TPUS)}: "
            f"v5e-256), or a machine of 1, 2, 4 or {HOST} GPUs ({', '.join(GPUS)}: h100x8)"
        )
    if gpu:
        return Target(name, GPUS[gpu[1]], f"1x1x{count}", count)
    device, axes = TPUS[tpu[1]]
    return Target(name, device, f"{tpu[1]}:{_torus(count, axes)}", count)


def _torus(count: int, axes: int) -> str:
    """A power of two as nearly equal axes: 256 -> "16x16"; those of length 1 come last."""
    exponents = [(count.bit_length() - 1 + i) // axes for i in range(axes)]
    return "x".join(str(1 << n) for n in sorted(exponents, key=lambda n: (n == 0, n)))


@contextlib.contextmanager
def assumed(target: Target, shape: Sequence[int] | None = None) -> Iterator[None]:
    """Inside, formulas are about a mesh of these devices; needs no compiler.

    Args:
        shape: of the mesh, as `layout.make_mesh` takes it.

    Raises:
        ValueError: no such mesh can be made of so many devices.
    """
    sizes, axes = layout.mesh_shape(shape, target.count), (AxisType.Explicit,) * 3
    with (
        assuming(target.device),
        jax.sharding.use_abstract_mesh(AbstractMesh(sizes, layout.AXES, axis_types=axes)),
    ):
        yield


def absence(target: Target) -> str:
    """Why the target's compiler cannot run here; "" if it can."""
    module = {"tpu": "libtpu", "gpu": "jax_cuda13_plugin"}[target.device.platform]
    if target.device.kind not in ("NVIDIA H100 80GB HBM3", *(x.kind for x, _ in TPUS.values())):
        return f"no description of {target.device.kind} for its compiler is known"
    spec = importlib.util.find_spec(module)
    return "" if spec else f"{module} is not installed: pip install 'ark_jax[aot]'"


@contextlib.contextmanager
def compiling_for(target: Target, shape: Sequence[int] | None = None) -> Iterator[list]:
    """Inside, what is lowered compiles for a mesh of these devices, which hold nothing.

    Yields the devices. Arguments are as of `assumed`; `absence` must be "".
    """
    from jax.experimental import topologies

    os.environ.update(ENVIRONMENT)
    if target.device.platform == "tpu":
        described = topologies.get_topology_desc(target.topology, "tpu")
    else:
        gpu = importlib.resources.files("ark_jax.estimate").joinpath("h100.txtpb").read_text()
        options = {"topology": target.topology, "target_config": gpu}
        described = topologies.get_topology_desc(platform="cuda", **options)
    mesh = layout.make_mesh(shape, described.devices)
    with assuming(target.device), _cudnn_of(target), jax.set_mesh(mesh):
        yield described.devices


@contextlib.contextmanager
def _cudnn_of(target: Target) -> Iterator[None]:
    """Answers jax, which asks its plugin and the GPUs of this machine for their cuDNN."""
    if target.device.platform != "gpu":
        yield
        return
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    gpu = SimpleNamespace(compute_capability=str(target.device.capability))
    backend = SimpleNamespace(platform_version="cuda")
    bridge = SimpleNamespace(get_backend=lambda: backend, local_devices=lambda **_: [gpu])
    with (
        mock.patch.object(cudnn, "xla_bridge", bridge),
        mock.patch.object(cudnn, "check_cudnn_version", lambda: 91_200),
    ):
        yield
