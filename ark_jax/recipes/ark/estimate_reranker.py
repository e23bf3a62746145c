"""What training a reranker and reranking with it compute, for `ark-jax plan`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ark_jax.recipes.ark.curriculum import RERANKER
from ark_jax.recipes.common.systems import DEPTH

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.estimate.device_work import WeightlessModel, Work
    from ark_jax.train.memory import Choice


def training_work(
    model: "WeightlessModel", queries: Sequence[int], lists: Sequence[Sequence[int]], config
) -> tuple["Work", "Choice"]:
    """All epochs over the lists, and how a step is computed, as if texts had their mean length.

    A backward pass takes twice the products of a forward one.

    Args:
        queries: tokens of each question.
        lists: tokens of the passages that each question is paired with.
    """
    count = math.ceil(config.score.keep * len(queries))
    texts = []
    for query, passages in zip(queries[:count], lists[:count], strict=True):
        texts += [query + passage for passage in passages]
    from ark_jax.estimate import step_memory

    mean, texts_a_list = sum(texts) / max(len(texts), 1), len(texts) / max(count, 1)
    step = [step_memory.even_texts(config.train.batch * texts_a_list, mean)]
    choice = step_memory.choose(model, config.train, lambda _: step)
    again, epochs = int(choice.remat == "all"), config.reranker.epochs
    flops = epochs * model.text_flops(texts) * (3 + again, 3.5 + again)
    return model.work(RERANKER, "training", epochs * sum(texts), flops), choice


def reranking_work(
    model: "WeightlessModel", queries: Sequence[int], passages: Sequence[int]
) -> "Work":
    """A pair for each question and each chunk found for it, as if chunks had their mean length."""
    mean = sum(passages) / max(len(passages), 1)
    texts = [query + mean for query in queries for _ in range(min(DEPTH, len(passages)))]
    return model.work("evaluate", "embedding", sum(texts), model.text_flops(texts))
