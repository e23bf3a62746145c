"""Adapters to other software: a module each, which imports that software."""

import importlib
import os
from collections.abc import Callable, Iterable
from types import ModuleType

import numpy as np

from ark_jax.runtime.log import say
from ark_jax.runtime.storage import local_path

BLOCK = 8192  # vectors in memory at once
ASKED, NOISE = 100, 0.6  # questions that measure a recall, and the length of their noise
RECALL = 0.98  # of the ten nearest vectors, that a search should find


def load(name: str) -> ModuleType:
    """The module of an adapter.

    Raises:
        RuntimeError: the software is not installed.
    """
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"{name} needs the package {error.name}: pip install 'ark-jax[integrations]'"
        ) from None


def write_file(
    path: str,
    vectors: np.ndarray,
    add: Callable[[int, np.ndarray], object],
    search: Callable[[np.ndarray, int, int], np.ndarray],
    save: Callable[[str], object],
    setting: str,
    efforts: Iterable[int],
) -> None:
    """Writes unit vectors `[n e]` by other software, and says the recall of its search.

    Recall@10 is the share of the ten nearest of all vectors that a search finds. Questions are
    vectors of the index, drawn at random, with noise of `NOISE` times their length.

    Args:
        add: takes the first row and the float32 vectors of a block.
        search: (questions, k, effort) -> rows `[q k]`, -1 where it finds none.
        setting: of the search, whose values are efforts; the first that suffices stays set.

    Raises:
        ValueError: the file is in a bucket.
    """
    file = local_path(path)
    rng, k = np.random.default_rng(0), min(10, len(vectors))
    drawn = np.sort(rng.choice(len(vectors), min(ASKED, len(vectors)), replace=False))
    noise = rng.standard_normal((len(drawn), vectors.shape[1]), np.float32)
    asked = vectors[drawn] + noise * np.float32(NOISE / vectors.shape[1] ** 0.5)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    highest = np.full((len(asked), k), -np.inf, np.float32)  # cosines of each question
    for first in range(0, len(vectors), BLOCK):
        block = np.asarray(vectors[first : first + BLOCK], np.float32)
        add(first, block)
        highest = np.partition(np.hstack([highest, asked @ block.T]), -k)[:, -k:]
    least = highest[:, :1] - 1e-5  # a copy of a near vector is as good
    for effort in efforts:
        rows = search(asked, k, effort)
        cosines = np.vecdot(asked[:, None], np.asarray(vectors[np.maximum(rows, 0)], np.float32))
        recall = np.mean((rows >= 0) & (cosines >= least))
        if recall >= RECALL:
            break
    shown = f", with {setting}={effort}" if setting else ""
    say(f"recall@10 of {len(asked)} questions like the vectors: {recall:.3f}{shown}")
    file.parent.mkdir(parents=True, exist_ok=True)
    save(f"{file}.new")
    os.replace(f"{file}.new", file)


_SIGNS = {"eq": "=", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "nin": "not in"}


def compared(name: str, operator: str, value: object) -> str:
    """A comparison of other software as a filter of `Index.search`.

    Args:
        name: of a column.
        operator: a sign, or a word such as "gte", "$gte", "in", "nin", "like" or "contains".
    """
    column, word = '"' + name.replace('"', '""') + '"', operator.lower().removeprefix("$")
    if word in ("contain", "contains"):
        return f"{_literal(str(value))} in {column}"
    if value is None and word in ("eq", "=", "==", "ne", "!="):
        return f"{column} is {'not ' if word[0] in 'n!' else ''}null"
    return f"{column} {_SIGNS.get(word, word)} {_literal(value)}"


def joined(word: str, parts: Iterable[str]) -> str:
    """Filters joined by "and" or "or"."""
    return f" {word} ".join(f"({part})" for part in parts)


def _literal(value: object) -> str:
    """A value, or a list of them, as a filter has it."""
    if isinstance(value, list | tuple | set):
        return f"({', '.join(map(_literal, value))})"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return "'" + text.replace("'", "''") + "'"
