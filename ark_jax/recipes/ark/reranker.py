"""The reranker stage: a scorer of pairs learns the alignment scores of each question's chunks.

It begins as a cross-encoder that has learnt to rank, since a few dozen questions teach a new head
too little.
"""

import json
import math
from pathlib import Path

from ark_jax.models.weight_names import CLASSIFIERS
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.config import TrainSection
from ark_jax.recipes.ark.curriculum import RERANKER, mine_name
from ark_jax.recipes.ark.mine import load_negatives
from ark_jax.recipes.ark.score import load_positives, load_scores, shares
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.training import first_and_last_loss, training_run
from ark_jax.runtime import storage
from ark_jax.schema import section_of


def check_base(config) -> None:
    """Refuses a model that is at hand and no encoder, which a run would find out hours later.

    Raises:
        ValueError: the field and the families that can become a reranker.
    """
    path = config.reranker.path
    family = _family(path)
    if family and family not in CLASSIFIERS:
        raise ValueError(
            f"config.reranker.path={path!r}: model_type {family!r} cannot become a reranker; "
            f"name a cross-encoder: {', '.join(CLASSIFIERS)}"
        )


def _family(path: str) -> str:
    """The model_type of a model that is at hand, or nothing."""
    try:
        is_remote = storage.is_hub_name(path)
        folder = storage.hub_model(path, download=False) if is_remote else storage.local_copy(path)
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError):  # whoever reads the model says what is wrong with it
        return ""


def train_reranker(context: Context, folder: Path, *, mined: int | None) -> dict:
    """Trains a scorer of question and chunk; stores it under `model`.

    Args:
        mined: the last training stage that has hard negatives, if any has.
    """
    from ark_jax.train import listwise, losses

    config, lists = context.config, load_lists(context, mined)
    tuned, _, curve = listwise.train(
        _load_base(context),
        lists,
        section_of(config.train, TrainSection),
        training_run(context.metrics, folder, RERANKER),
        batch=config.train.batch,
        epochs=config.reranker.epochs,
        learning_rate=config.reranker.learning_rate,
        seed=config.seed,
        loss=losses.list_cross_entropy,
    )
    tuned.save_pretrained(folder / "model")
    return {"lists": len(lists), "steps": len(curve), **first_and_last_loss(curve)}


def _load_base(context: Context):
    """The model to begin from."""
    from ark_jax.models.pairs import CrossEncoder

    path, settings = context.config.reranker.path, context.config.retriever
    options = {"head": "linear", "compute": settings.compute, "attention": settings.attention}
    return context.model("retriever", CrossEncoder.from_pretrained, path, **options)


def load_lists(context: Context, stage: int | None) -> list:
    """What the reranker learns: a `PairList` for each training question.

    Its texts are those of the positives, then of the hard negatives of the last stage that has any,
    then of other scored chunks, the best first. Its weights are their shares, see `shares`.
    """
    from ark_jax.train.lists import PairList

    config = context.config
    mined = {} if stage is None else load_negatives(context / mine_name(stage))
    folder = context / "positives"
    positives, scored = load_positives(folder), load_scores(folder)
    passages = Passages(stored_chunks(context))
    lists = []
    for question in load_questions(context, "train"):
        if question.id not in positives:
            continue
        scores = scored[question.id]
        by_score = sorted(scores, key=lambda chunk: (-scores[chunk], chunk))
        texts: dict[str, float] = {}  # of copies of a chunk, the first counts
        for chunk in (*positives[question.id], *mined.get(question.id, ()), *by_score):
            texts.setdefault(passages[chunk], scores.get(chunk, -math.inf))
        chosen = list(texts)[: config.reranker.candidates]
        weights = shares([texts[text] for text in chosen], config.train.teacher_temperature)
        lists.append(PairList(question.question, tuple(chosen), tuple(weights)))
    return lists
