"""A step in parts, one after the other: it takes the memory of one part.

A step of many long prompts would keep the activations of all of them for its backward pass. Its
loss is a sum over completions, so its gradient is the sum of the parts' gradients.
"""

import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import layout
from ark_jax.text import tokens as tk
from ark_jax.train.groups import BatchShape, Group


@typing.no_type_check  # tree operations put other leaves into it
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Parts:
    """The arrays of all parts of a step, stacked along a first axis."""

    arrays: Any


def prompts_of_part(shape: BatchShape, budget: int) -> int:
    """Number of prompts that a device computes at a time, in a step of this shape.

    A step of less than two budgets stays whole.

    Args:
        budget: tokens that a part has at least, unless one prompt with its completions is a part.
    """
    count = max((shape.prompt_room + shape.room) // budget, 1)
    return max(shape.prompts // count, 1)


def split(groups: Sequence[Group], prompts: int) -> list[list[Group]]:
    """The groups in parts of at most `prompts` distinct prompts a device, with about equal tokens.

    The number of parts is rounded up, since each number compiles the step again. So a part may have
    no completions.
    """
    numbers: dict[bytes, int] = {}
    owners = [
        numbers.setdefault(np.asarray(group.prompt_ids, np.int32).tobytes(), len(numbers))
        for group in groups
    ]
    tokens = [0] * len(numbers)
    for group, owner in zip(groups, owners, strict=True):
        tokens[owner] += len(group.prompt_ids) + sum(map(len, group.completions))
    slots = prompts * layout.batch_multiple()
    count = tk.round_rows(-(-len(numbers) // slots), 1)
    places, _ = tk.balance(tokens, count, slots)
    parts: list[list[Group]] = [[] for _ in range(count)]
    for group, owner in zip(groups, owners, strict=True):
        parts[places[owner] // slots].append(group)
    # A group without completions shows which optional fields a step has.
    return [part or [groups[0].select([False] * len(groups[0].completions))] for part in parts]


def join(parts: Sequence[Any]) -> Any:
    """Arrays of parts as `Parts`; a single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    return Parts(jax.tree.map(lambda *arrays: jnp.stack(arrays), *parts))


def summed(loss: Callable[[Any, Any], tuple], trainable: Any, parts: Parts) -> tuple:
    """The sum of `loss(trainable, part)` and of its metrics over the parts.

    The gradient is that of the sum. It is computed with the value, so that no part's activations
    are kept while the next one is computed.
    """

    def add(trainable: Any) -> tuple[tuple, Any]:
        """((loss, metrics), gradient), each summed over the parts."""
        value_and_grad = jax.value_and_grad(loss, has_aux=True)
        add_part = lambda sums, part: (
            jax.tree.map(jnp.add, sums, value_and_grad(trainable, part)),
            None,
        )
        # In jax 0.12 x[0] forgets the sharding of an axis of size 1; a loop's slice does not.
        loss_of_part = lambda part: loss(trainable, part)
        values = jax.eval_shape(lambda x: jax.lax.map(loss_of_part, x), parts.arrays)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), values)
        start = nothing, jax.tree.map(jnp.zeros_like, trainable)
        return jax.lax.scan(add_part, start, parts.arrays)[0]

    @jax.custom_vjp
    def total(trainable: Any) -> tuple:
        return add(trainable)[0]

    def backward(gradient: Any, sensitivities: tuple) -> tuple:
        """Scales the gradient of the loss; metrics have none."""
        return (jax.tree.map(lambda x: sensitivities[0] * x, gradient),)

    total.defvjp(add, backward)
    return total(trainable)
