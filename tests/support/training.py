"""For tests that train: settings of contrastive training, seven pairs of texts, a toy encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import layout
from ark_jax.models import encoder
from ark_jax.train.batches import Example
from ark_jax.train.config import ContrastiveConfig

CONFIG = ContrastiveConfig(
    warmup=0.2, batch=3, chunks=1, order="question", remat="products", lora_alpha=1.0
)


TRAINING = {"epochs": 2, "learning_rate": 1e-3, "seed": 1}


def contrastive_config(**changes) -> ContrastiveConfig:
    """CONFIG with some fields changed."""
    return dataclasses.replace(CONFIG, **changes)


WORDS = ("tide", "lamp", "salt", "lathe", "wool", "pilot", "bell")
QUESTIONS = {f"q{i}": f"who kept the {word}?" for i, word in enumerate(WORDS)}
PASSAGES = {f"c{i}": f"every {word} was in the care of the clerk" for i, word in enumerate(WORDS)}
PAIRS = [Example(f"q{i}", "d", (f"c{i}",), ()) for i in range(len(WORDS))]

BERT = encoder.Config(
    vocab=32,
    width=16,
    layers=2,
    heads=2,
    ffn=8,
    positions=8,
    pad=None,
    segments=1,
    norm_eps=1e-6,
    dtype="float32",
    compute="float32",
)

MESHES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 8, 1), (2, 2, 2)]  # of one, two and eight devices


def toy_encode(weights, tokens, mask):
    """An encoder: two matrices, a nonlinearity, a mean over visible tokens."""
    x = layout.lookup(weights["embed"], tokens)
    x = jnp.tanh(layout.einsum("btd,df->btf", x, weights["out"]))
    x = jnp.einsum("bte,bt->be", x, mask.astype(x.dtype)) / jnp.maximum(
        mask.sum(1, keepdims=True), 1
    )
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(1, keepdims=True), 1e-24))


def toy_inputs(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    weights = {
        "embed": rng.normal(size=(32, 16)).astype(np.float32),
        "out": rng.normal(size=(16, 8)).astype(np.float32),
    }
    return weights, rng.integers(0, 32, (rows, 5)), np.arange(5) < rng.integers(1, 6, (rows, 1))


def place_weights(weights: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """The toy's weights, sharded on the current mesh."""
    sides = {"embed": "v e", "out": "d f"}
    return {name: jax.device_put(w, layout.weight_spec(sides[name])) for name, w in weights.items()}
