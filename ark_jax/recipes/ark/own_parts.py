"""The functions of the user's own that a config of ARK may name; README.md describes them."""

from ark_jax.recipes.ark.checks import check_ark
from ark_jax.recipes.common import own_loss, own_miner, own_reader


def check_all(config) -> None:
    """As `check_ark`, and imports the functions of the user's own that the config names.

    Raises:
        ValueError: there is no such function, or it takes other parameters.
    """
    check_ark(config)
    own_miner.check("mine.by", config.mine.by)
    own_loss.load(config)
    own_reader.check(config)
