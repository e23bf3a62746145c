"""Checkpoints of one run: the disk holds the last two. If one is damaged, the other is restored."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from orbax.checkpoint import v1 as ocp

from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.log import say

MAX_TO_KEEP = 2


class Checkpoints:
    """Training states under `folder`, by step. On leaving its context, the last write is done.

    The disk holds `MAX_TO_KEEP` states and, for a moment, one more. With AdamW in float32 each
    takes three times the trained weights.
    """

    def __init__(self, folder: Path, history: Callable[[int], int] | None = None):
        """Opens the folder, which may be new.

        Args:
            history: step -> a uint32 digest of what the run has written up to that step. A state is
                restored only if the digest is the same as when the state was saved. All processes
                call it together, and all must get the same. None: states are restored unchecked.
        """
        self.folder, self._history = folder, history
        self._pending_save = None
        # Compression frees a tenth of the disk, takes more time than the disk, and leaves the
        # process with buffers of the state's size.
        context = ocp.Context()
        context.array.saving.use_compression = False
        self._orbax = ocp.training.Checkpointer(
            folder,
            context=context,
            preservation_policy=ocp.training.preservation_policies.LatestN(MAX_TO_KEEP),
            cleanup_tmp_directories=True,
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        with self._explain_failure():
            self._orbax.close()

    def restore(self, abstract: Any) -> Any | None:
        """The newest state whose digest is right; None if there is none.

        A damaged checkpoint is renamed to `STEP.damaged`, and the one before is tried.

        Args:
            abstract: shapes, types and shardings of the state, on any mesh.
        """
        checkpoints = list(self._orbax.checkpoints)
        while checkpoints:
            newest = checkpoints.pop()
            state, damage = self._load_checked(newest.step, abstract)
            if not damage:
                return state
            outcome = (
                f"the one of step {checkpoints[-1].step} is tried"
                if checkpoints
                else "none is left, so training starts anew"
            )
            problem = f"is damaged ({damage}) and set aside"
            say(f"  warning: checkpoint {newest.path} {problem}; {outcome}")
            if is_first_process():
                _set_aside(newest.path)
            multihost_utils.sync_global_devices("damaged checkpoint set aside")
            self._orbax.reload()
        return None

    def _load_checked(self, step: int, abstract: Any) -> tuple[Any, str]:
        """The state of a step, and what is wrong with it; "" if nothing is."""
        everywhere = NamedSharding(jax.sharding.get_mesh(), P())
        digest = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=everywhere)
        loaded, damage = {}, ""
        try:
            loaded = self._orbax.load(step, {"state": abstract, "digest": digest})
        except Exception as error:
            causes = list(_causes(error))
            out_of_memory = (jax.errors.JaxRuntimeError, MemoryError)
            if any(isinstance(cause, out_of_memory) for cause in causes):
                raise  # an earlier checkpoint would not fit into memory either
            damage = _first_line(causes[-1])
        if not np.all(multihost_utils.process_allgather(np.array(not damage))):
            damage = damage or "another process cannot read it"
        else:
            state_digest, history = map(int, loaded["digest"])
            if int(_digest(loaded["state"])) != state_digest:
                damage = "its bits have changed"
            elif self._history and self._history(step) != history:
                damage = "it belongs to another run, or the run's curve has changed"
        return loaded.get("state"), damage

    def save(self, step: int, state: Any, *, wait: bool = False) -> None:
        """Writes a state in the background, unless its step is stored; with `wait`, waits for it.

        Raises:
            OSError: this state, or the one before it, could not be written.
        """
        with self._explain_failure():
            if self._pending_save:
                self._pending_save.result()
            if all(checkpoint.step != step for checkpoint in self._orbax.checkpoints):
                history = self._history(step) if self._history else 0
                digests = jnp.stack([_digest(state), jnp.uint32(history)])
                content = {"state": state, "digest": digests}
                self._pending_save = self._orbax.save_async(step, content, force=True)
            if wait:
                self._orbax.wait()

    @contextlib.contextmanager
    def _explain_failure(self) -> Iterator[None]:
        """Turns an error of writing into an OSError that says what to do."""
        try:
            yield
        except Exception as error:
            raise OSError(
                f"{self.folder}: a checkpoint could not be written ({_first_line(error)}): "
                "free some space there or make it writable, and run the same command again; "
                "earlier checkpoints are intact"
            ) from error


@jax.jit
def _digest(state: Any) -> jax.Array:
    """The sum of all words, uint32: the same on every mesh.

    A flipped bit changes it, which Orbax does not notice.
    """

    def words(x: jax.Array) -> jax.Array:
        """The bits of each number as uint32."""
        return jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)

    return sum(jnp.sum(words(x)) for x in jax.tree.leaves(state))


def _set_aside(path: epath.Path) -> None:
    """Renames a checkpoint to `STEP.damaged`; if that exists, to `STEP.damaged1` and so on."""
    targets = (epath.Path(f"{path}.damaged{n or ''}") for n in itertools.count())
    path.rename(next(target for target in targets if not target.exists()))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: BaseException) -> str:
    """Type and first line of an error, without the pages that TensorStore adds."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:300]
