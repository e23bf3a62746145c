"""The selectors of a run, and the sets that they draw."""

import dataclasses
from collections.abc import Sequence

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.choices import EvidenceSelector
from ark_jax.recipes.bar_rag.drawing import DrawingSelector
from ark_jax.recipes.bar_rag.readers import stage_of
from ark_jax.recipes.bar_rag.rollouts import DrawnSet
from ark_jax.recipes.bar_rag.success import Success
from ark_jax.recipes.bar_rag.writer import WritingSelector
from ark_jax.recipes.common.reader_training import PooledQuestion

KINDS = {"vectors": DrawingSelector.open, "writer": WritingSelector.open}


def selector_before(context: Context, iteration: int) -> EvidenceSelector:
    """The selector that an iteration begins with: that of the config, or the last one."""
    config = context.config
    if iteration > 1 and config.read.evidence == "selected":
        return load_selector(context, iteration - 1)
    context.enter_mesh()
    return KINDS[config.selector.kind](context, None)


def load_selector(context: Context, iteration: int) -> EvidenceSelector:
    """The selector that an iteration trained."""
    context.enter_mesh()
    folder = context / stage_of("select", iteration) / "selector"
    return KINDS[context.config.selector.kind](context, folder)


def draw_sets(
    selector: EvidenceSelector,
    questions: Sequence[PooledQuestion],
    success: Success,
    *,
    draws: int,
    seed: int,
    step: int = 0,
    label: str = "",
) -> list[DrawnSet]:
    """Sets that a selector draws of questions, with their p."""
    drawn = selector.draw(questions, draws=draws, seed=seed, step=step)
    sets = [
        (pooled, one) for pooled, chosen in zip(questions, drawn, strict=True) for one in chosen
    ]
    values = iter(
        success.p([(pooled, one.chunk_ids) for pooled, one in sets if not one.problem], label)
    )
    return [one if one.problem else dataclasses.replace(one, p=next(values)) for _, one in sets]
