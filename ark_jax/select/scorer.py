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
from ark_jax.select import plackett_luce as pl
from ark_jax.select.pools import Pool, place_pools

SETTINGS = "selector.json"
SCALE = 10.0  # of cosines: a difference of .1 is a factor of e in probability
SIZE_STEP = 8  # to which numbers of candidates and of pools are rounded up, to compile less often


@dataclasses.dataclass(frozen=True)
class SelectorConfig:
    """The sizes of a selector."""

    width: int  # of the retriever's vectors
    rank: int  # of the product between question and passage; 0 leaves it out


class SmallSelector(nnx.Module):
    """Scores of candidates. A new one draws by cosine, as the retriever ranks.

    The score of a candidate is a cosine with the question, the logarithm of its rank, a product of
    low rank between question and passage, and its mean cosine with what is drawn already, each with
    a weight. Every device holds all weights and computes the same, since there is so little.
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
        """What the draws of a question depend on. Passages come in the retriever's order."""
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

    sets: list[np.ndarray]  # places in the pool from 0, int32, in the order in which they are drawn
    log_probs: Float[np.ndarray, " m"]  # of the ordered draws


@dataclasses.dataclass(frozen=True)
class Selector:
    """A selector and its sizes."""

    model: SmallSelector
    cfg: SelectorConfig

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

        What is drawn follows from (seed, step, number of the pool, set), whatever else the call
        holds. Of fewer candidates than k all are drawn.

        Raises:
            ValueError: a pool is empty, or a vector is not finite or of another width.
        """
        return self._sets(pools, k, functools.partial(_drawn, k=k, draws=draws), seed, step)

    def best(self, pools: Sequence[Pool], *, k: int) -> list[DrawnSets]:
        """The one set of each question that takes the most probable candidate at each place."""
        return self._sets(pools, k, functools.partial(_best, k=k))

    def _sets(self, pools: Sequence[Pool], k: int, compute, *place: int) -> list[DrawnSets]:
        if k < 1:
            raise ValueError(f"k={k}: a set has at least one document")
        if not pools:
            return []
        longest = max(len(pool.passages) for pool in pools)
        arrays = place_pools(pools, self.cfg.width, round_up(len(pools)), round_up(longest))
        return drawn_sets(compute(self.model, arrays, *place), len(pools))


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
def _drawn(
    model: SmallSelector,
    arrays: dict,
    seed: Int[Array, ""],
    step: Int[Array, ""],
    *,
    k: int,
    draws: int,
) -> tuple[Int[Array, "q m k"], Float[Array, "q m"]]:
    n = arrays["present"].shape[1]
    noise = lambda number: pl.gumbel(seed, step, number, draws=draws, k=k, candidates=n)
    return with_log_probs(candidates_of(model, arrays), jax.vmap(noise)(arrays["numbers"]))


@functools.partial(jax.jit, static_argnames="k")
def _best(
    model: SmallSelector, arrays: dict, *, k: int
) -> tuple[Int[Array, "q 1 k"], Float[Array, "q 1"]]:
    q, n = arrays["present"].shape
    return with_log_probs(candidates_of(model, arrays), jnp.zeros((q, 1, k, n)))


def with_log_probs(
    candidates: pl.Candidates, noise: Float[Array, "q m k n"]
) -> tuple[Int[Array, "q m k"], Float[Array, "q m"]]:
    """Draws and their log-probabilities, by the path that training differentiates."""
    sets = jax.vmap(pl.draw)(candidates, noise)
    return sets, jax.vmap(pl.place_log_probs)(candidates, sets).sum(-1)
