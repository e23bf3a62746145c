"""The functions of the user's own that a config of ARK may name; README.md describes them."""

from collections.abc import Callable

from ark_jax.pipeline import own_functions
from ark_jax.recipes.ark.checks import check_ark
from ark_jax.recipes.common import own_loss, own_reader


def check_all(config) -> None:
    """As `check_ark`, and imports the functions of the user's own that the config names.

    Raises:
        ValueError: there is no such function, or it takes other parameters.
    """
    check_ark(config)
    if own_functions.is_own(config.mine.by):
        _load_miner(config)
    if own_functions.is_own(config.train.loss):
        load_loss(config)
    own_reader.check(config)


def mine(config, task) -> dict[str, list[int]]:
    """The candidates of `mine.by`, a function of the user's own; see `mining.own_candidates`."""
    from ark_jax.retrieval import mining

    miner = _load_miner(config)
    try:
        return mining.own_candidates(miner, task)
    except ValueError as error:
        raise ValueError(f"config.mine.by={config.mine.by!r}: {error}") from None


def _load_miner(config) -> Callable:
    from ark_jax.retrieval.mining import Miner

    return own_functions.load("mine.by", config.mine.by, Miner)


def load_loss(config) -> Callable:
    """The loss that `train.loss` names, a `losses.Loss`; ValueError as of `own_loss.load`."""
    from ark_jax.train import losses

    return own_loss.load(config) or getattr(losses, config.train.loss)
