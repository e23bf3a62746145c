"""Machines that are not here: TPUs for libtpu's compiler, H100s for that of jax's CUDA plugin."""

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
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
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.experimental import topologies

from ark_jax import layout
from ark_jax.runtime import device_memory


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind; `topology` is as `get_topology_desc` names it."""

    platform: str
    topology: str
    devices: int


# Chips are counted.
TARGETS = {
    "v5e-8": Target("tpu", "v5e:2x4", 8),
    "v5e-256": Target("tpu", "v5e:16x16", 256),
    "v6e-256": Target("tpu", "v6e:16x16", 256),
    "v5p-64": Target("tpu", "v5p:4x4x4", 64),
    "h100": Target("gpu", "1x1x1", 1),
    "h100x8": Target("gpu", "1x1x8", 8),
}
# What NVIDIA publishes of an H100 SXM, in the form in which XLA's compiler asks for it.
H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 12 }
gpu_device_info {
  name: "NVIDIA H100 80GB HBM3"
  device_vendor: "NVIDIA Corporation"
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_block_limit: 65536
  registers_per_core_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  device_memory_size: 84942979072
  memory_bandwidth: 3352320000000
  device_address_bits: 64
  ecc_enabled: true
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.12.0"
}
"""


def absence(target: Target) -> str:
    """Why the target's compiler cannot run here; "" if it can."""
    module = {"tpu": "libtpu", "gpu": "jax_cuda13_plugin"}[target.platform]
    found = importlib.util.find_spec(module)
    return "" if found else f"{module} is not installed: pip install -e '.[aot]'"


def described(target: Target) -> list:
    """The target's devices, which can be compiled for and hold nothing."""
    if target.platform == "tpu":
        return topologies.get_topology_desc(target.topology, "tpu").devices
    options = {"topology": target.topology, "target_config": H100}
    return topologies.get_topology_desc(platform="cuda", **options).devices


@contextlib.contextmanager
def entered(target: Target) -> Iterator[None]:
    """The package's default mesh over the target's devices, which jax calls its own inside."""
    devices = described(target)
    kind = devices[0].device_kind
    size = next(
        size for pattern, size in device_memory.MEMORY.items() if re.fullmatch(pattern, kind)
    )
    with contextlib.ExitStack() as stack:
        enter = lambda *what: stack.enter_context(mock.patch.object(*what))
        enter(jax, "devices", lambda *_: devices)
        enter(jax, "local_devices", lambda **_: devices)
        enter(jax, "device_count", lambda *_: len(devices))
        enter(jax, "default_backend", lambda: target.platform)
        enter(device_memory, "_local_device_memory", lambda: size)
        if target.platform == "gpu":
            # Which cuDNN there is, jax asks its plugin and the GPUs of this machine.
            backend = SimpleNamespace(platform_version="cuda")
            bridge = {"get_backend": lambda: backend, "local_devices": lambda **_: devices}
            enter(cudnn, "xla_bridge", SimpleNamespace(**bridge))
            enter(cudnn, "check_cudnn_version", lambda: 91_200)
        stack.enter_context(jax.set_mesh(layout.make_mesh()))
        yield
