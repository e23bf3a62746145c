"""The readers of a run: the untuned model, the warm one, and that of each iteration."""

from ark_jax.pipeline.stage import Context

UNTUNED = "untuned"
WARM = "warm"
OWN = "own"  # the function that `reader.backend` names


def stage_of(kind: str, iteration: int) -> str:
    """The stage of an iteration: `filter-1`, `select-1`, `evidence-1`, `read-1`."""
    return f"{kind}-{iteration}"


def reader_before(iteration: int) -> str:
    """The stage whose reader an iteration begins with."""
    return stage_of("read", iteration - 1) if iteration > 1 else WARM


def tuned_readers(config) -> tuple[str, ...]:
    """The stages whose folder holds a trained reader, first to last."""
    return (WARM, *(stage_of("read", i) for i in range(1, config.iterations + 1)))


def load_reader(context: Context, name: str):
    """A reader by its name; the last one used stays in memory.

    Its parameters are float32, since it may be trained; it computes in `generator.dtype`.

    Args:
        name: `untuned` is `generator.path`; anything else is a stage whose folder holds a `model`.
    """
    from ark_jax.models.language import LanguageModel

    settings = context.config.generator
    path = settings.path if name == UNTUNED else str(context / name / "model")
    return context.model(
        "generator",
        LanguageModel.from_pretrained,
        path,
        compute=settings.dtype,
        attention=settings.attention,
    )
