"""The maths of the method `query_map`: its loss and how a map is applied."""

import dataclasses

import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class QueryMapLoss:
    """InfoNCE between mapped queries and their passages; other queries' passages are negatives."""

    temperature: float

    def __call__(self, trainable, frozen, batch) -> tuple[jax.Array, dict]:
        cosines = apply_map(trainable, batch["queries"]) @ batch["passages"].T
        labels = jnp.arange(len(cosines))
        losses = optax.softmax_cross_entropy_with_integer_labels(cosines / self.temperature, labels)
        return losses.mean(), {"right": (cosines.argmax(1) == labels).mean()}


def apply_map(matrix: jax.Array, queries: jax.Array) -> jax.Array:
    """Unit vectors `[q e]` of queries `[q e]` after a map `[e e]`."""
    mapped = queries @ matrix
    return mapped / jnp.linalg.norm(mapped, axis=-1, keepdims=True)
