"""Checkpoints of one stage: two are kept, a damaged one gives way to the one before."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from ark_jax.log import primary, say

KEPT = 2


class Checkpoints:
    """States under `folder`, by step; a context manager, which waits for the last one to be written.

    The disk holds `KEPT` of them and, for a moment, one more: of AdamW in float32 each is three times the trained weights.
    """

    def __init__(self, folder: Path):
        self.folder, self._writing = folder, None
        keep = ocp.training.preservation_policies.LatestN(KEPT)
        self._orbax = ocp.training.Checkpointer(folder, preservation_policy=keep, cleanup_tmp_directories=True)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        with self._explained():
            self._orbax.close()

    def restore(self, abstract) -> Any | None:
        """The newest state that reads back as it was written, on the mesh of `abstract`; None if there is none.

        A damaged one stays, with `.damaged` to its name.
        """
        digest = jax.ShapeDtypeStruct((), jnp.uint32, sharding=NamedSharding(jax.sharding.get_mesh(), P()))
        found = list(self._orbax.checkpoints)
        while found:
            last, why = found.pop(), ""
            try:
                loaded = self._orbax.load(last.step, {"state": abstract, "digest": digest})
            except Exception as error:
                causes = list(_causes(error))
                if any(isinstance(cause, (jax.errors.JaxRuntimeError, MemoryError)) for cause in causes):
                    raise  # memory is short: an earlier one would not fit either
                why = _line(causes[-1])
            if not np.all(multihost_utils.process_allgather(np.array(not why))):
                why = why or "another process cannot read it"
            elif int(_digest(loaded["state"])) != int(loaded["digest"]):
                why = "its bits have changed"
            if not why:
                return loaded["state"]
            then = f"the one of step {found[-1].step} is tried" if found else "none is left, so training starts anew"
            say(f"  warning: checkpoint {last.path} is damaged ({why}) and set aside; {then}")
            if primary():
                names = (f"{last.path}.damaged{n or ''}" for n in itertools.count())  # a bad disk may do it again
                Path(last.path).rename(next(name for name in names if not Path(name).exists()))
            multihost_utils.sync_global_devices("damaged checkpoint set aside")
            self._orbax.reload()
        return None

    def save(self, step: int, state, *, wait: bool = False) -> None:
        """Writes a state, unless it is there, in the background or, with `wait`, now.

        Raises:
            OSError: it, or the one before it, could not be written.
        """
        with self._explained():
            if self._writing:
                self._writing.result()
            if all(kept.step != step for kept in self._orbax.checkpoints):
                self._writing = self._orbax.save_async(step, {"state": state, "digest": _digest(state)}, force=True)
            if wait:
                self._orbax.wait()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise OSError(f"{self.folder}: a checkpoint could not be written ({_line(error)}): free some space there or make it "
                          "writable, and run the same command again; earlier checkpoints are intact") from error


@jax.jit
def _digest(state) -> jax.Array:
    """The sum of all words: the same on every mesh, and another one after a bit has flipped, which Orbax does not notice."""
    words = lambda x: jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    return sum(jnp.sum(words(x)) for x in jax.tree.leaves(state))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    """What an error says, without the pages that TensorStore adds."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:300]
