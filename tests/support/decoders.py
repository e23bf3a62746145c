"""Small decoders and texts for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ark_jax import layout
from ark_jax.models.language import LanguageModel

FAMILY = {"begin": "llama", "plain": "qwen3", "chat": "qwen3"}


def open_model(path) -> LanguageModel:
    return LanguageModel.from_pretrained(str(path))


@functools.partial(jax.jit, static_argnums=0)
def all_logits(cfg, model, tokens):
    """Logits [b t v] of right-padded rows, by one pass that shares and caches nothing."""
    x = model(tokens, jnp.ones(tokens.shape, bool, out_sharding=jax.typeof(tokens).sharding), cfg)
    return jax.vmap(lambda row: model.logits(row, cfg), in_axes=1, out_axes=1)(x)


def plain_pass(lm: LanguageModel, rows: list[list[int]]) -> np.ndarray:
    """`all_logits` of at most 64 rows of at most 96 tokens, one shape for all."""
    tokens = np.zeros((64, 96), np.int32)
    for i, ids in enumerate(rows):
        tokens[i, : len(ids)] = ids
    return np.asarray(all_logits(lm.cfg, lm.model, layout.rows(tokens)), np.float64)


PROMPTS = [
    "The Tidal Board was",
    "x",
    "It was read every quarter of an hour by clerks who worked",
    "Seven members",
    "世界",
]


STEPS = 12


def before(ids: list[int], stops: set[int]) -> list[int]:
    return ids[: next((i for i, token in enumerate(ids) if token in stops), len(ids))]
