"""Words of a command line that name its config and its workdir."""

import os
import re
from collections.abc import Sequence
from pathlib import Path


def joined(args: Sequence[str]) -> list[str]:
    """`--config FILE` and `--workdir DIR` as one word each."""
    words: list[str] = []
    for arg in args:
        if words and re.fullmatch("--?(config|workdir)", words[-1]):
            words[-1] += f"={arg}"
        else:
            words.append(arg)
    return words


def values_of(flag: str, args: Sequence[str]) -> list[str]:
    """What a flag is given, in order."""
    matches = (re.fullmatch(rf"--?{flag}=(.*)", arg, re.DOTALL) for arg in args)
    return [match[1] for match in matches if match]


def absolute(path: str | None, flag: str = "--workdir") -> Path | None:
    """A folder of a flag.

    Raises:
        ValueError: it lies in a bucket, or a file lies where it would.
    """
    if not path:
        return None
    from ark_jax.runtime.storage import local_path

    try:
        folder = local_path(path)
    except ValueError as error:
        raise ValueError(f"{flag}={error}") from None
    nearest = next(place for place in (folder, *folder.parents) if os.path.exists(place))
    if not os.path.isdir(nearest):
        raise ValueError(f"{flag}={path}: {nearest} is a file; give another folder")
    return folder


def config_of_workdir(args: Sequence[str]):
    """The config that the workdir of the flags keeps, with new fields at their defaults, if any."""
    from ark_jax import config
    from ark_jax.pipeline import kept_config

    workdir = absolute((values_of("workdir", args) or [""])[-1])
    plain = kept_config.read(workdir) if workdir else None
    return None if plain is None else config.from_json(plain)
