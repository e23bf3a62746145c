"""How much memory a device has."""

import math
import re
from collections.abc import Mapping

import jax

from ark_jax.runtime import distributed
from ark_jax.runtime.accelerator import assumed_device, host_memory

# Bytes of a device's memory by its `device_kind`, as published where `train.flops.PEAKS` is from.
MEMORY = {
    r"TPU v4": 32e9,
    r"TPU v5( lite|e)": 16e9,
    r"TPU v5p?": 95e9,
    r"TPU v6( lite|e)": 32e9,
    r"NVIDIA (A100.*80GB.*|H100 PCIe|H100 80GB HBM3)": 80e9,
    r"NVIDIA A100.*": 40e9,
    r"NVIDIA H100 NVL": 94e9,
    r"NVIDIA H200.*": 141e9,
    r"NVIDIA B200": 180e9,
}


def device_memory() -> float:
    """Bytes of a device: of its allocator's limit, as published, or a CPU's share of the host's.

    All processes get the value of the first one, since they must choose alike.
    """
    return distributed.on_first_process(_local_device_memory)


def _local_device_memory() -> float:
    """`device_memory` of this process's first device; infinity if it is not known."""
    if assumed := assumed_device():
        return published(MEMORY, assumed.kind) or math.inf
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return host_memory() / jax.local_device_count()
    if limit := (device.memory_stats() or {}).get("bytes_limit"):
        return float(limit)
    return published(MEMORY, device.device_kind) or math.inf


def published(table: Mapping[str, float], device_kind: str) -> float | None:
    """A device's number in a table by kinds of devices; None if it is not known."""
    return next((x for kind, x in table.items() if re.fullmatch(kind, device_kind)), None)
