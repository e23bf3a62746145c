"""The candidates of questions, and their vectors on the devices."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from ark_jax import layout


@dataclasses.dataclass(frozen=True)
class Pool:
    """The candidates of one question, best first by the retriever; vectors have unit length."""

    number: int  # identifies the question; random draws depend on it
    question: Float[np.ndarray, " width"]
    passages: Float[np.ndarray, "n width"]


def place_pools(
    pools: Sequence[Pool], width: int, rows: int, candidates: int
) -> dict[str, jax.Array]:
    """Pools as arrays of one shape on every device: `numbers`, `questions`, `passages`, `present`.

    Raises:
        ValueError: a pool is empty or too large, or a vector is not finite or of another width.
    """
    numbers = np.zeros(rows, np.int32)
    questions = np.zeros((rows, width), np.float32)
    passages = np.zeros((rows, candidates, width), np.float32)
    present = np.zeros((rows, candidates), bool)
    for row, pool in enumerate(pools):
        count = len(pool.passages)
        label = f"pool of question {pool.number}"
        if not 0 < count <= candidates:
            raise ValueError(f"{label}: {count} passages; it must have 1 to {candidates}")
        if pool.question.shape != (width,) or pool.passages.shape != (count, width):
            raise ValueError(
                f"{label}: vectors of shape {pool.question.shape} and {pool.passages.shape}; this "
                f"selector was made for vectors of {width} numbers: use the retriever it was "
                "trained with"
            )
        if not (np.isfinite(pool.question).all() and np.isfinite(pool.passages).all()):
            raise ValueError(f"{label}: a vector holds NaN or infinity; embed its texts again")
        numbers[row], questions[row] = pool.number, pool.question
        passages[row, :count], present[row, :count] = pool.passages, True
    arrays = {"numbers": numbers, "questions": questions, "passages": passages, "present": present}
    return {name: layout.put(array, P()) for name, array in arrays.items()}
