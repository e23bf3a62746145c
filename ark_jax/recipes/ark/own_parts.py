"""The functions of the user's own that a config of ARK may name; README.md describes them."""

from collections.abc import Callable

from ark_jax.pipeline import own_functions
from ark_jax.recipes.ark.checks import check_ark
from ark_jax.recipes.common import own_reader


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
    if own_functions.is_own(config.reader.backend):
        own_reader.load(config)


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
    """The loss that `train.loss` names, a `losses.Loss`.

    Raises:
        ValueError: by the loss itself: a function of the user's own returns no single number.
    """
    from ark_jax.train import losses

    named = config.train.loss
    if not own_functions.is_own(named):
        return getattr(losses, named)
    function = own_functions.load("train.loss", named, losses.Loss)

    def checked(*arrays, temperature: float):
        value = function(*arrays, temperature=temperature)
        if getattr(value, "shape", None) != ():
            shape = getattr(value, "shape", type(value).__name__)
            raise ValueError(
                f"config.train.loss={named!r} returned an array of shape {shape}, and a loss is "
                "one number: return its mean"
            )
        return value

    return losses.on_whole_arrays(checked)
