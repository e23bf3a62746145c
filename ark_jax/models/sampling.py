"""The next token: the likeliest, or drawn."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from ark_jax.layout import activation_spec


@jax.jit
def keys(seed, i):
    """A key for the draws of each prompt [n 2]."""
    return jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(jax.random.key(seed), i)))(i)


def choose(logits, draw, made):
    """The next token of each row, int32 [b], from its logits [b v].

    Args:
        draw: None for the likeliest, or each row's key [b 2], the temperature, and top_p (None: all tokens).
        made: how many tokens each row has made before [b].
    """
    if draw is None:
        return jnp.argmax(logits, -1).astype(jnp.int32)
    own, temperature, top_p = draw

    def one(logits, key, made, temperature, top_p):
        logits = logits / temperature
        if top_p is not None:
            likeliest = -jnp.sort(-logits)
            share = jax.nn.softmax(likeliest)
            least = jnp.min(jnp.where(jnp.cumsum(share) - share < top_p, likeliest, jnp.inf))
            logits = jnp.where(logits >= least, logits, -jnp.inf)
        noise = jax.random.gumbel(jax.random.fold_in(jax.random.wrap_key_data(key), made), logits.shape)
        return jnp.argmax(logits + noise).astype(jnp.int32)

    # Each device draws for its own rows, all of the vocabulary before it.
    rows = activation_spec("b")
    local = jax.shard_map(jax.vmap(one, in_axes=(0, 0, 0, None, None)), in_specs=(rows, rows, rows, P(), P()), out_specs=rows)
    return local(jax.sharding.reshard(logits, rows), own, made, jnp.float32(temperature), top_p)
