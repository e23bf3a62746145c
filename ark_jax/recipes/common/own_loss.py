"""A loss of the user's own, which a field of the config names."""

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
        _check_shape("train.loss", named, value, (), "a loss is one number: return its mean")
        return value

    return losses.on_whole_arrays(checked)


def load_of_tokens(config) -> Callable | None:
    """The function that `read.loss` names, a `policy.TokenLoss`; None if that is a built-in choice.

    It gets all rows on every device, as of `load`.

    Raises:
        ValueError: as `load`; by the loss itself: it returns no number for each token.
    """
    named = config.read.loss
    if not own_functions.is_own(named):
        return None
    import jax

    from ark_jax.train import losses, policy

    whole = losses.on_whole_arrays(own_functions.load("read.loss", named, policy.TokenLoss))

    def checked(log_probs, *arrays):
        value = whole(log_probs, *arrays)
        advice = f"a token has one number each: return shape {log_probs.shape}"
        _check_shape("read.loss", named, value, log_probs.shape, advice)
        return jax.sharding.reshard(value, jax.typeof(log_probs).sharding.spec)

    return checked


def _check_shape(field: str, named: str, value, shape: tuple[int, ...], advice: str) -> None:
    if getattr(value, "shape", None) != shape:
        returned = getattr(value, "shape", type(value).__name__)
        raise ValueError(
            f"config.{field}={named!r} returned an array of shape {returned}, and {advice}"
        )
