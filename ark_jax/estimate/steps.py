"""Training steps with abstract arguments: shapes and shardings on the current mesh, no numbers.

A compiler says what such a step holds. Texts are those of a device, as `train.memory` counts them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from ark_jax import layout
from ark_jax.models import decoder
from ark_jax.models.pooling import VectorForm
from ark_jax.train import fit
from ark_jax.train.contrastive import ContrastiveObjective
from ark_jax.train.memory import Texts
from ark_jax.train.triplet import TripletObjective


def mesh_in_use() -> jax.sharding.Mesh | jax.sharding.AbstractMesh:
    """The mesh that is set; one without devices is good for shapes only."""
    mesh = jax.sharding.get_mesh()
    return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def array(*shape: int, dtype: DTypeLike = np.int32, spec: P | None = None) -> jax.ShapeDtypeStruct:
    """An abstract array; by default sharded over the batch axes by its first dimension."""
    spec = P(layout.BATCH) if spec is None else spec
    return jax.ShapeDtypeStruct(
        shape, jnp.dtype(dtype), sharding=NamedSharding(mesh_in_use(), spec)
    )


def placed(make: Callable[..., Any], *arguments: Any) -> Any:
    """What a function would return, abstract, with the shardings that it gives."""

    def place(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return array(*x.shape, dtype=x.dtype, spec=x.sharding.spec if x.sharding else P())

    return jax.tree.map(place, jax.eval_shape(make, *arguments))


def lowered(
    objective: fit.Objective,
    optimizer: optax.GradientTransformation,
    trainable: Any,
    frozen: Any,
    batch: Any,
) -> jax.stages.Lowered:
    """`fit.train_step` with all that `fit.train` passes."""
    state = placed(lambda x: fit.State.create(x, optimizer), trainable)
    return fit.train_step.lower(objective, optimizer, state, frozen, batch, 1e-5, 3)


def contrastive(
    cfg: Any, texts: Sequence[Texts], pieces: int, matryoshka: Sequence[int] = ()
) -> tuple[ContrastiveObjective, dict]:
    """Objective and batch of a step on questions and passages, the latter in pieces.

    Args:
        texts: the questions of a device, and one piece of its passages.
    """
    objective = ContrastiveObjective(
        cfg,
        (_form(cfg),) * 2,
        pieces,
        tuple(x.tokens for x in texts),
        temperature=0.02,
        matryoshka=tuple(matryoshka),
    )
    batch, pairs = _rows_and_pairs(texts, ("queries", "passages"), pieces)
    return objective, batch | dict.fromkeys(("positive", "negative"), pairs)


def triplet(cfg: Any, texts: Sequence[Texts]) -> tuple[TripletObjective, dict]:
    """Objective and batch of a step on the questions and the triples of a device."""
    objective = TripletObjective(
        (cfg, cfg), (_form(cfg),) * 2, tuple(x.tokens for x in texts), None, (0.1, 0.1), 0.05
    )
    batch, pairs = _rows_and_pairs(texts, ("queries", "triples"))
    return objective, batch | dict.fromkeys(("positive", "neighbour", "negative"), pairs)


def _form(cfg: Any) -> VectorForm:
    return VectorForm(("lasttoken" if isinstance(cfg, decoder.Config) else "mean",), cfg.width)


def _rows_and_pairs(
    texts: Sequence[Texts], names: tuple[str, str], pieces: int = 1
) -> tuple[dict, jax.ShapeDtypeStruct]:
    """Name -> tokens and mask `[b t]` of two kinds of texts, and a mask of their pairs `[b c]`."""
    devices, (first, last) = layout.batch_multiple(), texts
    rows = devices * first.rows, devices * last.rows * pieces
    shapes = zip(names, rows, (first.length, last.length), strict=True)
    batch = {name: (array(n, t), array(n, t, dtype=bool)) for name, n, t in shapes}
    return batch, array(*rows, dtype=bool)


def held(compiled: jax.stages.Compiled) -> int:
    """Bytes of a device that a compiled program reserves, with its arguments."""
    sizes = compiled.memory_analysis()
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return kept + sizes.temp_size_in_bytes
