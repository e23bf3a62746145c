"""Which device jax uses, looked up without starting jax, and the floating-point type for it."""

import contextlib
import contextvars
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

# Device file -> the accelerator's platform, and modules. Jax needs one of these to use it.
DEVICE_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "/dev/nvidia0": ("gpu", ("jax_cuda13_plugin", "jax_cuda12_plugin")),
    "/dev/accel0": ("tpu", ("libtpu",)),
    "/dev/vfio/0": ("tpu", ("libtpu",)),
}
# What a config may say. "auto" suits the device: see `float_type` and `models.kernels.choose`.
FLOAT_TYPES = ("auto", "float32", "bfloat16", "float16")
KERNELS = ("auto", "xla", "cudnn", "splash", "tokamax")
CAPABILITY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")


class Device(NamedTuple):
    """What types and kernels depend on.

    Attributes:
        platform: "cpu", "gpu" or "tpu", as jax names it.
        capability: NVIDIA's compute capability, such as 9.0; 0: no such GPU, or not known.
        kind: jax's `device_kind`, such as "TPU v5 lite"; "" where jax is not started.
    """

    platform: str
    capability: float = 0.0
    kind: str = ""


_assumed: contextvars.ContextVar[Device | None] = contextvars.ContextVar("assumed", default=None)


@contextlib.contextmanager
def assuming(device: Device) -> Iterator[None]:
    """Inside, the device in use is one that is not here, for plans and for its compiler."""
    token = _assumed.set(device)
    try:
        yield
    finally:
        _assumed.reset(token)


def assumed_device() -> Device | None:
    """The device that `assuming` sets; None elsewhere."""
    return _assumed.get()


def find_device() -> Device:
    """The kind of jax's default devices, or the one that `assuming` sets, without starting jax.

    The first name in $JAX_PLATFORMS decides. If it is not set, a device file must exist and the
    module by which jax drives that device must be installed.
    """
    if assumed := assumed_device():
        return assumed
    if platforms := os.environ.get("JAX_PLATFORMS"):
        name = platforms.split(",")[0].strip()
        platform = {"cuda": "gpu", "rocm": "gpu"}.get(name, name)
    else:
        present = (
            platform
            for file, (platform, modules) in DEVICE_FILES.items()
            if Path(file).exists() and any(map(importlib.util.find_spec, modules))
        )
        platform = next(present, "cpu")
    return Device(platform, _lowest_capability() if platform == "gpu" else 0.0)


def _lowest_capability() -> float:
    """The lowest compute capability of this machine's NVIDIA GPUs; 0 if it is not known."""
    try:
        answer = subprocess.run(CAPABILITY, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 0.0
    return min(map(float, re.findall(r"^\d+\.\d+$", answer.stdout, re.M)), default=0.0)


def device_in_use() -> Device:
    """The kind of jax's default devices, or the one that `assuming` sets; starts jax."""
    if assumed := assumed_device():
        return assumed
    import jax

    first = jax.devices()[0]
    capability = str(getattr(first, "compute_capability", ""))  # AMD's is a name
    known = re.fullmatch(r"\d+\.\d+", capability)
    return Device(jax.default_backend(), float(capability) if known else 0.0, first.device_kind)


def host_memory() -> int:
    """Bytes of this machine's memory, or of its container's limit, free or not."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        size = min(size, int(text))
    return size


def float_type(name: str, device: Device) -> str:
    """The type that suits the device if `name` is "auto", else `name`.

    It is bfloat16 on TPUs and GPUs, and float32 on CPUs and on GPUs before NVIDIA's Ampere, which
    have no products in bfloat16.
    """
    if name != "auto":
        return name
    old = 0 < device.capability < 8
    return "float32" if device.platform == "cpu" or old else "bfloat16"
