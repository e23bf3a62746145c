"""The selectors of a run, and the sets that they draw."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.pool import PoolVectors
from ark_jax.recipes.bar_rag.readers import stage_of
from ark_jax.recipes.bar_rag.success import Success
from ark_jax.recipes.common.reader_training import PooledQuestion

if TYPE_CHECKING:  # its module starts jax
    from ark_jax.select.scorer import Selector


def selector_before(context: Context, iteration: int) -> "Selector":
    """The selector that an iteration begins with: a new one, which draws by cosine, or the last."""
    from ark_jax.select.scorer import Selector

    context.enter_mesh()
    config = context.config
    if iteration > 1 and config.read.evidence == "selected":
        return load_selector(context, iteration - 1)
    return Selector.new(PoolVectors(context).width, rank=config.select.rank, seed=config.seed)


def load_selector(context: Context, iteration: int) -> "Selector":
    """The selector that an iteration trained."""
    from ark_jax.select.scorer import Selector

    context.enter_mesh()
    return Selector.from_pretrained(context / stage_of("select", iteration) / "selector")


def drawn_rows(
    selector: "Selector",
    vectors: PoolVectors,
    questions: Sequence[PooledQuestion],
    success: Success,
    *,
    k: int,
    draws: int,
    seed: int,
    step: int = 0,
    label: str = "",
) -> list[dict]:
    """Sets that a selector draws of questions, with their p: a row of each."""
    drawn = selector.draw(vectors.pools(questions), k=k, draws=draws, seed=seed, step=step)
    sets = [
        (pooled, [pooled.chunk_ids[place] for place in one], float(log_prob))
        for pooled, of_question in zip(questions, drawn, strict=True)
        for one, log_prob in zip(of_question.sets, of_question.log_probs, strict=True)
    ]
    values = success.of([(pooled, chunks) for pooled, chunks, _ in sets], label)
    return [
        {"question_id": pooled.id, "chunk_ids": chunks, "log_prob": log_prob, "p": p}
        for (pooled, chunks, log_prob), p in zip(sets, values, strict=True)
    ]
