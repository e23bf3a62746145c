"""The training stages of the curriculum, and the merge of the last one with the base."""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path

from ark_jax.pipeline.reads import element
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark import curriculum
from ark_jax.recipes.ark.config import TrainSection
from ark_jax.recipes.ark.mine import load_negatives
from ark_jax.recipes.ark.score import load_positives, load_scores, load_shares
from ark_jax.recipes.common import own_loss
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.models import load_retriever
from ark_jax.recipes.common.training import first_and_last_loss, training_run
from ark_jax.runtime import distributed
from ark_jax.schema import section_of


def load_examples(context: Context, stage: int) -> tuple[list, dict[str, str], Passages]:
    """What a stage is trained on: its `Example`s, the texts of questions and of chunks, by id."""
    from ark_jax.retrieval import mining
    from ark_jax.train import batches

    settings, scored = context.config.train, context / "positives"
    questions = {question.id: question for question in load_questions(context, "train")}
    mined = stage in curriculum.MINING_SIZES
    negatives = load_negatives(context / curriculum.mine_name(stage)) if mined else {}
    passages = Passages(stored_chunks(context))
    copies = {}
    if settings.merge_copies:
        numbers = distributed.on_first_process(
            lambda: list(mining.first_copies(passages.values()).items())
        )
        chunk_ids = list(passages)
        copies = {chunk_ids[copy]: chunk_ids[first] for copy, first in numbers}
    documents = {id: "\n".join(question.documents) for id, question in questions.items()}
    shares = {}
    if curriculum.is_distilling(context.config):
        shares = load_shares(scored, copies, settings.teacher_temperature)
    positives = shares or load_positives(scored)
    examples = batches.make_examples(positives, negatives, documents, copies)
    if shares:
        examples = [
            dataclasses.replace(example, shares=tuple(shares[example.question].values()))
            for example in examples
        ]
    return examples, {id: question.question for id, question in questions.items()}, passages


def learned_questions(context: Context) -> Collection[str]:
    """The ids of the training questions that any stage learns from."""
    load = load_scores if curriculum.is_distilling(context.config) else load_positives
    return load(context / "positives")


def train_stage(context: Context, folder: Path, *, stage: int, before: str) -> dict:
    """One stage of the curriculum.

    Args:
        before: the system whose model it starts from.
    """
    from ark_jax.models import lora
    from ark_jax.train import batches, contrastive

    config, name = context.config, curriculum.stage_name(stage)
    run = training_run(context.metrics, folder, name, label=f"stage {stage}")
    examples, questions, passages = load_examples(context, stage)

    def write_examples() -> None:
        if not (folder / "examples").is_dir():
            batches.write_examples(examples, folder / "examples.new")
            (folder / "examples.new").rename(folder / "examples")

    distributed.on_first_process(write_examples)
    examples = batches.read_examples(folder / "examples")
    tuned, adapter, curve = contrastive.train(
        load_retriever(context, before),
        examples,
        questions,
        passages,
        section_of(config.train, TrainSection),
        run,
        epochs=curriculum.epochs(config.train, stage),
        learning_rate=element(config.train, "learning_rates", max(stage - 1, 0)),
        seed=config.seed + stage,
        use_negatives=stage in curriculum.MINING_SIZES,
        loss=load_loss(config),
    )
    tuned.save_pretrained(folder / "model")
    if adapter:
        # A base in the workdir is named relative to it, so that the files do not depend on where
        # the workdir lies.
        base = config.retriever.path if before == "base" else f"{before}/model"
        lora.save_peft(adapter, folder / "adapter", base=base)
    # The saved weights have the base's types, perhaps 16 bits. The next stage reads them back, so
    # that a resumed run equals an uninterrupted one.
    context.models.pop("retriever", None)
    return {"steps": len(curve), "examples": len(examples), **first_and_last_loss(curve)}


def merge_with_base(context: Context, folder: Path, *, last: str) -> dict:
    """Interpolates base and last stage, weight by weight.

    It keeps most of what tuning gains on its own data, and loses less elsewhere (WiSE-FT).
    """
    import jax

    share = context.config.train.merge
    base = load_retriever(context, "base")
    tuned = load_retriever(context, last)
    weights = jax.tree.map(lambda a, b: a + share * (b - a), base.model, tuned.model)
    merged = dataclasses.replace(tuned, model=weights)
    merged.save_pretrained(folder / "model")
    context.models.pop("retriever", None)
    return {"merged": last, "share": share}


def load_loss(config) -> Callable:
    """The loss that `train.loss` names, a `losses.Loss`; ValueError as of `own_loss.load`."""
    from ark_jax.train import losses

    return own_loss.load(config) or getattr(losses, config.train.loss)
