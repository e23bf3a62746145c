"""A loss of the user's own, which `train.loss` names."""

from collections.abc import Callable

from ark_jax.pipeline import own_functions


def load(config, kind: str = "Loss") -> Callable | None:
    """The function that `train.loss` names; None if that is a built-in choice.

    It gets all rows on every device, in float32, since it knows of no mesh.

    Args:
        kind: the protocol of the loss: `losses.Loss` or `losses.ListLoss`.

    Raises:
        ValueError: there is no such function, or it takes other parameters; by the loss itself: it
            returns no single number.
    """
    named = config.train.loss
    if not own_functions.is_own(named):
        return None
    from ark_jax.train import losses  # starts jax

    function = own_functions.load("train.loss", named, getattr(losses, kind))

    def checked(*arrays, **settings: float):
        value = function(*arrays, **settings)
        if getattr(value, "shape", None) != ():
            shape = getattr(value, "shape", type(value).__name__)
            raise ValueError(
                f"config.train.loss={named!r} returned an array of shape {shape}, and a loss is "
                "one number: return its mean"
            )
        return value

    return losses.on_whole_arrays(checked)
