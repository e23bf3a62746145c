"""The reranker stage: a scorer of pairs learns the alignment scores of each question's chunks.

A retriever becomes the head `sum`, which begins as its cosine. With a new classification head it
would begin as nothing, and a few dozen questions teach that too little. A named cross-encoder has a
head that has learnt, and keeps it.
"""

import json
import math
from pathlib import Path

from ark_jax.models.weight_names import CLASSIFIERS
from ark_jax.pipeline.fingerprints import model_digest
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.ark.curriculum import RERANKER, last_mining, systems
from ark_jax.recipes.ark.mine import load_negatives
from ark_jax.recipes.ark.score import load_positives, load_scores, shares
from ark_jax.recipes.ark.settings import TrainSection
from ark_jax.recipes.common.corpus import Passages, load_questions, stored_chunks
from ark_jax.recipes.common.models import load_retriever
from ark_jax.recipes.common.training import first_and_last_loss, training_run
from ark_jax.runtime import storage
from ark_jax.schema import section_of

RERANKER_SETTINGS = (
    *(f"reranker.{name}" for name in ("candidates", "temperature", "epochs", "learning_rate")),
    *(
        f"train.{name}"
        for name in (
            "warmup",
            "weight_decay",
            "clip",
            "batch",
            "lora_rank",
            "lora_alpha",
            "lora_targets",
        )
    ),
)


def base_model(config) -> dict[str, str]:
    """The fingerprint of the model that the reranker begins from.

    Raises:
        ValueError: the model is at hand and no encoder, which a run would find out hours later.
    """
    section = "reranker" if config.reranker.path else "retriever"
    path = config[section].path
    family = _family(path)
    if family and family not in CLASSIFIERS:
        raise ValueError(
            f"config.{section}.path={path!r}: model_type {family!r} cannot become a reranker; "
            f"name a cross-encoder in config.reranker.path: {', '.join(CLASSIFIERS)}"
        )
    return {section: model_digest(path)}


def _family(path: str) -> str:
    """The model_type of a model that is at hand, or nothing."""
    try:
        is_remote = storage.is_hub_name(path)
        folder = storage.hub_model(path, download=False) if is_remote else storage.local_copy(path)
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError):  # whoever reads the model says what is wrong with it
        return ""


def train_reranker(context: Context, folder: Path) -> dict:
    """Trains a scorer of question and chunk; stores it under `model`."""
    from ark_jax.train import listwise, losses

    config, lists = context.config, load_lists(context)
    tuned, _, curve = listwise.train(
        _load_base(context),
        lists,
        section_of(config.train, TrainSection),
        training_run(context, folder, RERANKER),
        batch=config.train.batch,
        epochs=config.reranker.epochs,
        learning_rate=config.reranker.learning_rate,
        seed=config.seed,
        loss=losses.list_cross_entropy,
    )
    tuned.save_pretrained(folder / "model")
    return {"lists": len(lists), "steps": len(curve), **first_and_last_loss(curve)}


def _load_base(context: Context):
    """The model to begin from: the last tuned retriever, or the one that the config names."""
    from ark_jax.models.pairs import PairScorer

    config = context.config
    if not config.reranker.path:
        retriever = load_retriever(context, systems(config).last)
        return PairScorer.from_retriever(retriever).with_head("sum", seed=config.seed)
    context.enter_mesh()
    settings = config.retriever
    return PairScorer.from_pretrained(
        config.reranker.path, head="linear", compute=settings.compute, attention=settings.attention
    )


def load_lists(context: Context) -> list:
    """What the reranker learns: a `PairList` for each training question.

    Its texts are those of the positives, then of the hard negatives of the last stage that has any,
    then of other scored chunks, the best first. Its weights are their shares, see `shares`.
    """
    from ark_jax.train.lists import PairList

    config = context.config
    stage = last_mining(config)
    mined = {} if stage is None else load_negatives(context, stage)
    positives, scored = load_positives(context), load_scores(context)
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
        weights = shares([texts[text] for text in chosen], config.reranker.temperature)
        lists.append(PairList(question.question, tuple(chosen), tuple(weights)))
    return lists
