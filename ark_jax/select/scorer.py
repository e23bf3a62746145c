"""A small selector of documents: scores from a retriever's vectors, ordered draws with exact
probabilities."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from ark_jax import layout
from ark_jax.models import config_json, hf
from ark_jax.runtime.distributed import is_first_process
from ark_jax.runtime.shown import one_line
from ark_jax.select import plackett_luce as pl
from ark_jax.select.pools import Pool, place_pools

SETTINGS = "selector.json"
SCALE = 10.0  # multiplies cosines: a difference of .1 makes a factor of e in probability
SIZE_STEP = 8  # numbers of candidates and pools are rounded up to it, to compile less often


@dataclasses.dataclass(frozen=True)
class SelectorConfig:
    """The sizes of a selector."""

    width: int  # of the retriever's vectors
    rank: int  # of the product between question and passage; 0 leaves it out


class SmallSelector(nnx.Module):
    """Scores candidates. A new one scores by cosine, as the retriever does.

    A score is the weighted sum of the cosine with the question, the logarithm of the rank, a
    low-rank product of question and passage, and the mean cosine with the passages drawn so far.
    Every device holds all weights and computes the same, since the model is so small.
    """

    def __init__(self, cfg: SelectorConfig, *, rngs: nnx.Rngs):
        scalar = lambda value: nnx.Param(jnp.full((), value, jnp.float32, out_sharding=P()))
        self.cosine, self.order, self.similarity = scalar(1.0), scalar(0.0), scalar(0.0)
        # As in LoRA: one factor is random, the other zero.
        factor = lambda init: nnx.Param(
            init(rngs.params(), (cfg.width, cfg.rank), jnp.float32, out_sharding=P())
        )
        self.question = factor(jax.nn.initializers.normal(1.0)) if cfg.rank else None
        self.passage = factor(jax.nn.initializers.zeros) if cfg.rank else None

    def __call__(
        self,
        question: Float[Array, " width"],
        passages: Float[Array, "n width"],
        present: Bool[Array, " n"],
    ) -> pl.Candidates:
        """The scores of a question's passages, which are in the retriever's order."""
        product = functools.partial(jnp.einsum, precision="highest")
        ranks = jnp.log1p(jnp.arange(len(passages), dtype=jnp.float32))
        cosines = SCALE * product("e,ne->n", question, passages)
        scores = self.cosine[...] * cosines - self.order[...] * ranks
        if self.passage is not None:
            projected = product("e,er->r", question, self.question[...])
            scores += product("r,er,ne->n", projected, self.passage[...], passages)
        pairs = self.similarity[...] * SCALE * product("ne,me->nm", passages, passages)
        return pl.Candidates(scores, present, pairs)


@dataclasses.dataclass(frozen=True)
class DrawnSets:
    """Sets of candidates that were drawn for one question."""

    sets: list[np.ndarray]  # positions in the pool, int32, in the order of drawing
    log_probs: Float[np.ndarray, " m"]  # of the ordered draws


@dataclasses.dataclass(frozen=True)
class Selector:
    """A selector and its sizes."""

    model: SmallSelector
    cfg: SelectorConfig
    __repr__ = one_line("cfg")

    @classmethod
    def new(cls, width: int, *, rank: int = 8, seed: int = 0) -> "Selector":
        """A selector that draws by the retriever's cosines until it is trained."""
        layout.enter_mesh()
        cfg = SelectorConfig(width, rank)
        return cls(SmallSelector(cfg, rngs=nnx.Rngs(seed)), cfg)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "Selector":
        """Reads what `save_pretrained` wrote.

        Raises:
            FileNotFoundError: a file is missing.
            ValueError: a file is damaged or not that of a selector.
        """
        folder = hf.resolve(str(folder))
        path = folder / SETTINGS
        if not path.is_file():
            raise FileNotFoundError(
                f"{folder}: no {SETTINGS}; give a folder that Selector.save_pretrained wrote"
            )
        settings = hf.read_json(path)
        try:
            config_json.check_sizes(settings, ["width"])
            cfg = SelectorConfig(settings["width"], settings["rank"])
            if not isinstance(cfg.rank, int) or isinstance(cfg.rank, bool) or cfg.rank < 0:
                raise ValueError(f"rank={cfg.rank!r}: must be an integer of at least 0")
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: {error}; fetch the file again") from None
        selector = cls.new(cfg.width, rank=cfg.rank)
        checkpoint = hf.Checkpoint(folder)
        for name, value in hf.named_parameters(selector.model):
            tensor = np.asarray(checkpoint.slice(name)[...])
            if tensor.shape != value[...].shape or not np.isfinite(tensor).all():
                raise ValueError(
                    f"{folder}: tensor {name} of shape {tensor.shape} must be finite and of shape "
                    f"{value[...].shape}, as {SETTINGS} says; fetch the files again"
                )
            value[...] = layout.put(tensor.astype(np.float32), P())
        return selector

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes model.safetensors and selector.json. Every process must call this."""
        tensors = {
            name: layout.fetch(value[...]) for name, value in hf.named_parameters(self.model)
        }
        with hf.local_folder(folder) as local:
            hf.write_tensors(tensors, local)
            if is_first_process():
                text = json.dumps(dataclasses.asdict(self.cfg), indent=2)
                (local / SETTINGS).write_text(text + "\n", encoding="utf-8")

    def digest(self) -> str:
        """The sha256 of sizes and weights. Every process must call this."""
        digest = hashlib.sha256(repr(self.cfg).encode())
        for _, value in hf.named_parameters(self.model):
            digest.update(np.ascontiguousarray(layout.fetch(value[...])))
        return digest.hexdigest()

    def select(
        self,
        question: Float[np.ndarray, " width"],
        passages: Float[np.ndarray, "n width"],
        *,
        k: int = 5,
        draws: int = 8,
        seed: int = 0,
    ) -> DrawnSets:
        """Draws ordered sets of k passages for a question; see `draw`."""
        return self.draw([Pool(0, question, passages)], k=k, draws=draws, seed=seed)[0]

    def draw(
        self, pools: Sequence[Pool], *, k: int, draws: int, seed: int, step: int = 0
    ) -> list[DrawnSets]:
        """Draws ordered sets for many questions.

        A draw depends on (seed, step, number of the pool, set) alone, not on the other pools. If a
        pool has fewer than k candidates, all are drawn.

        Raises:
            ValueError: a pool is empty, or a vector is not finite or of another width.
        """
        return self._draw_sets(
            pools, k, functools.partial(_draw_arrays, k=k, draws=draws), seed, step
        )

    def best(self, pools: Sequence[Pool], *, k: int) -> list[DrawnSets]:
        """The one set of each question that takes the most probable candidate at each place."""
        return self._draw_sets(pools, k, functools.partial(_best_arrays, k=k))

    def _draw_sets(self, pools: Sequence[Pool], k: int, compute, *key: int) -> list[DrawnSets]:
        """Draws sets in padded arrays.

        Args:
            compute: (model, arrays of `place_pools`, *key) -> draws and their log-probabilities.
        """
        if k < 1:
            raise ValueError(f"k={k}: a set has at least one document")
        if not pools:
            return []
        longest = max(len(pool.passages) for pool in pools)
        arrays = place_pools(pools, self.cfg.width, round_up(len(pools)), round_up(longest))
        return drawn_sets(compute(self.model, arrays, *key), len(pools))


def drawn_sets(arrays: tuple[jax.Array, jax.Array], count: int) -> list[DrawnSets]:
    """The sets of the first `count` questions, from what `with_log_probs` returns."""
    sets, log_probs = map(layout.fetch, arrays)
    return [
        DrawnSets([row[row != pl.NOT_DRAWN] for row in rows], values)
        for rows, values in zip(sets[:count], log_probs[:count], strict=True)
    ]


def round_up(count: int) -> int:
    """A number of questions or candidates, rounded up so that few shapes are compiled."""
    return -(-count // SIZE_STEP) * SIZE_STEP


def candidates_of(model: SmallSelector, arrays: dict[str, jax.Array]) -> pl.Candidates:
    """The candidates of all pools of `place_pools`."""
    return jax.vmap(model)(arrays["questions"], arrays["passages"], arrays["present"])


@functools.partial(jax.jit, static_argnames=("k", "draws"))
def _draw_arrays(
    model: SmallSelector,
    arrays: dict,
    seed: Int[Array, ""],
    step: Int[Array, ""],
    *,
    k: int,
    draws: int,
) -> tuple[Int[Array, "q m k"], Float[Array, "q m"]]:
    """Random draws and their log-probabilities."""
    n = arrays["present"].shape[1]
    noise = lambda number: pl.gumbel(seed, step, number, draws=draws, k=k, candidates=n)
    return with_log_probs(candidates_of(model, arrays), jax.vmap(noise)(arrays["numbers"]))


@functools.partial(jax.jit, static_argnames="k")
def _best_arrays(
    model: SmallSelector, arrays: dict, *, k: int
) -> tuple[Int[Array, "q 1 k"], Float[Array, "q 1"]]:
    """The draw of the best candidate at each place, and its log-probability."""
    q, n = arrays["present"].shape
    return with_log_probs(candidates_of(model, arrays), jnp.zeros((q, 1, k, n)))


def with_log_probs(
    candidates: pl.Candidates, noise: Float[Array, "q m k n"]
) -> tuple[Int[Array, "q m k"], Float[Array, "q m"]]:
    """Draws and their log-probabilities, computed as training does, which differentiates them."""
    sets = jax.vmap(pl.draw)(candidates, noise)
    return sets, jax.vmap(pl.place_log_probs)(candidates, sets).sum(-1)
