"""Weights in torch's own format, .bin or .pt: a pickle, which is never opened here.

Torch's loader of plain tensors (`weights_only`) converts it once, in a process of its own.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ark_jax.runtime import storage
from ark_jax.runtime.log import say

_PROGRAM = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
*files, out = map(Path, sys.argv[1:])
tensors = {}
for file in files:
    tensors |= torch.load(file, map_location="cpu", weights_only=True)
save_file({k: v.clone().contiguous() for k, v in tensors.items()}, out, metadata={"format": "pt"})
"""


def find(folder: Path) -> list[Path]:
    """The files of weights in torch's format; empty if there are none."""
    if (folder / "pytorch_model.bin").is_file():
        return [folder / "pytorch_model.bin"]
    return sorted(folder.glob("pytorch_model-*-of-*.bin"))


def convert(files: Sequence[Path]) -> Path:
    """A safetensors file with the weights of all files of a folder, in the cache.

    Raises:
        ValueError: torch is not installed, or it refuses the files.
    """
    folder = files[0].parent
    states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr(states).encode()).hexdigest()[:32]
    out = storage.cache_folder() / "converted" / key / "model.safetensors"
    if out.is_file():
        return out
    if importlib.util.find_spec("torch") is None:
        raise ValueError(
            f"{folder}: its weights are in {files[0].name}, a pickle, which is not opened here: "
            "install torch, which then converts it once, or save it as safetensors with "
            "transformers on another machine"
        )
    say(f"{folder}: {files[0].name} is converted once, by torch in a process of its own")
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(f"{os.getpid()}.new")
    command = [sys.executable, "-I", "-c", _PROGRAM, *map(str, (*files, new))]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(
            f"{files[0]}: torch does not read it as plain tensors ({reason[:200]}); take weights "
            "in safetensors"
        )
    new.rename(out)
    return out
