"""Candidates for negatives by a function of the user's own, which a field of the config names."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ark_jax.pipeline import own_functions

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.retrieval.mining import MiningTask


def check(field: str, path: str) -> None:
    """Imports the function that a field names, if it names one.

    Raises:
        ValueError: there is no such function, or it takes other parameters.
    """
    if own_functions.is_own(path):
        _load(field, path)


def mine(field: str, path: str, task: "MiningTask") -> dict[str, list[int]]:
    """The candidates of each question, hardest first; see `mining.own_candidates`.

    Raises:
        ValueError: there is no such function, or what it returns is no list of candidates.
    """
    from ark_jax.retrieval import mining

    miner = _load(field, path)
    try:
        return mining.own_candidates(miner, task)
    except ValueError as error:
        raise ValueError(f"config.{field}={path!r}: {error}") from None


def _load(field: str, path: str) -> Callable:
    from ark_jax.retrieval.mining import Miner

    return own_functions.load(field, path, Miner)
