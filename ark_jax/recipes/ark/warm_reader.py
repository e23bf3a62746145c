"""The warm stage: the reader learns to answer from the training questions' own evidence."""

from pathlib import Path

from ark_jax.data.chunk_files import StoredChunks
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.common.candidates import load_candidates
from ark_jax.recipes.common.corpus import Passages, gold_passages, load_questions, stored_chunks
from ark_jax.recipes.common.models import WARM_READER
from ark_jax.recipes.common.reader import reading_prompt
from ark_jax.recipes.common.reader_training import PooledQuestion, sets_with_gold, teach
from ark_jax.recipes.common.training import training_run
from ark_jax.runtime.log import say
from ark_jax.train.config import LanguageModelConfig


def train_warm_reader(context: Context, folder: Path) -> dict:
    """Trains the local reader; stores it under `model`.

    Each question is shown with as many passages as the reader will get: those that hold its
    evidence, and other candidates, in any order.

    Raises:
        ValueError: no training question has an answer and a passage that holds it.
    """
    config, chunks = context.config, stored_chunks(context)
    questions = _pooled(context, chunks)
    if not questions:
        raise ValueError(
            "config.reader.warm: no training question has an answer and a passage that holds it; "
            "mark evidence in the data, set config.evaluate.gold=answers, or leave the reader as "
            "it is"
        )
    if missing := len(load_questions(context, "train")) - len(questions):
        say(f"  {missing:,} questions without an answer or its passage are not shown")
    settings = config.reader
    sets = sets_with_gold(
        questions, settings.steps, settings.batch, config.evaluate.passages, config.seed
    )
    form = reading_prompt(config)
    (tuned, _, _), counts = teach(
        _load_reader(context),
        form,
        sets,
        Passages(chunks),
        LanguageModelConfig(remat="products"),
        training_run(context.metrics, folder, WARM_READER),
        batch=min(settings.batch, len(questions)),
        learning_rate=settings.learning_rate,
        seed=config.seed,
    )
    tuned.save_pretrained(folder / "model", dtype="float32")
    form.write(folder / "model")
    return counts


def _load_reader(context: Context):
    """The untuned reader, with parameters in float32: others would lose small updates."""
    from ark_jax.models.language import LanguageModel

    context.enter_mesh()
    context.models.pop("generator", None)  # memory may not hold two
    settings = context.config.generator
    return LanguageModel.from_pretrained(
        context.config.reader.path or settings.path,
        compute=settings.dtype,
        attention=settings.attention,
    )


def _pooled(context: Context, chunks: StoredChunks) -> list[PooledQuestion]:
    """The training questions that can be shown, each with its candidates."""
    from ark_jax.evaluate.answers import normalise

    answerable = [q for q in load_questions(context, "train") if any(map(normalise, q.answers))]
    gold, _ = gold_passages(context, answerable, chunks.by_document)
    candidates, pooled = load_candidates(context), []
    for number, question in enumerate(answerable):
        passages = tuple(map(tuple, gold[question.id]))
        if not any(passages) or question.id not in candidates:
            continue
        ids, cosines = zip(*candidates[question.id], strict=True)
        pooled.append(PooledQuestion(number, question, ids, cosines, passages))
    return pooled
