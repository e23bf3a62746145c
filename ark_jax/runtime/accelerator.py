"""Whether jax will find an accelerator, looked up without starting jax."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

# Device files of an accelerator -> modules of which jax needs one to use it.
DEVICE_FILES: Mapping[str, tuple[str, ...]] = {
    "/dev/nvidia0": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "/dev/accel0": ("libtpu",),
    "/dev/vfio/0": ("libtpu",),
}


def has_accelerator() -> bool:
    """Whether jax's default devices will be other than the CPU.

    The first name in $JAX_PLATFORMS decides. If it is not set, a device file must exist and the
    module by which jax drives that device must be installed.
    """
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0].strip() != "cpu"
    return any(
        Path(file).exists() and any(map(importlib.util.find_spec, modules))
        for file, modules in DEVICE_FILES.items()
    )
