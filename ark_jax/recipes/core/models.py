"""The models of a run: loaded once, named by default, trained, and copied by an export."""

import functools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ark_jax.pipeline.stage import Context
from ark_jax.runtime.accelerator import find_device, float_type
from ark_jax.runtime.log import Metrics, say
from ark_jax.text.token_vectors import Vectors

if TYPE_CHECKING:  # these start jax
    from ark_jax.train.fit import Run


MASTER = "float32"  # type of the weights that stages pass on: 16 bits would lose small updates
WARM_READER = "warm"  # the stage that trains the reader, if there is one
SCORER = "scorer"  # the system whose retriever is `score.path`


def retriever_path(context: Context, system: str) -> str:
    """The folder or hub name of a system's retriever, as `load_retriever` explains."""
    if system == "base":
        return context.config.retriever.path
    if system == SCORER:
        return context.config.score.path
    if not context.is_fresh(system):
        compared = {Path(path).name: path for path in context.config.evaluate.retrievers}
        if system in compared:
            return compared[system]
    return str(context / system / "model")


def load_retriever(context: Context, system: str = "base"):
    """A retriever by the name of its system; the last one used stays in memory.

    Args:
        system: "base" is `retriever.path`; the last part of a path in `evaluate.retrievers` is that
            retriever; anything else is a stage whose folder holds a `model`.
    """
    from ark_jax.models.multi_vector import MultiVectorRetriever, open_retriever
    from ark_jax.models.retriever import Retriever

    path, open_model = retriever_path(context, system), open_retriever
    settings = context.config.retriever
    options = {"compute": settings.compute, "attention": settings.attention}
    if system == "base":  # the config decides, whatever the folder declares
        kind = MultiVectorRetriever if keeps_tokens(context.config) else Retriever
        open_model = kind.from_pretrained
        named = {kind: prompt for kind, prompt in settings.prompts.items() if prompt}
        options |= {"prompts": named} if named else {}
    return context.model("retriever", open_model, path, **options)


def keeps_tokens(config) -> bool:
    """Whether the tuned retriever keeps a vector for each token; only ARK can."""
    return config.retriever.get("vectors", "text") == "tokens"


def load_base_scorer(context: Context):
    """The retriever before training as a `CrossEncoder`, whose logits are cosines."""
    from ark_jax.models.pairs import CrossEncoder

    return CrossEncoder.from_retriever(load_retriever(context))


def load_trained(context: Context, kind: type):
    """The model of a class that the stage `train` has trained, outside the models in memory."""
    context.enter_mesh()
    settings = context.config.retriever
    return kind.from_pretrained(
        context / "train" / "model", compute=settings.compute, attention=settings.attention
    )


def load_generator(context: Context, path: str = ""):
    """The language model of `generator.path`, or another one; the last one used stays in memory."""
    from ark_jax.models.language import LanguageModel

    settings = context.config.generator

    def open_model(path: str, **options: str) -> LanguageModel:
        if settings.dtype == "float16":
            say(
                "  generator.dtype=float16 holds no number above 65504. If the model exceeds it, "
                "the run stops; bfloat16 takes as little memory and has no such limit"
            )
        return LanguageModel.from_pretrained(path, **options)

    return context.model(
        "generator",
        open_model,
        path or settings.path,
        dtype=settings.dtype,
        compute=settings.dtype,
        attention=settings.attention,
    )


def reader_path(context: Context) -> str:
    """The folder or hub name of a local reader; empty: that of `generator.path`."""
    reader = context.config.reader
    return str(context / WARM_READER / "model") if trains_reader(context.config) else reader.path


def trains_reader(config) -> bool:
    """Whether a stage trains the reader; some recipes have none."""
    return config.reader.get("warm", False)


def load_reranker(context: Context, stage: str = ""):
    """The scorer of a stage, or of `evaluate.rerank`."""
    from ark_jax.models.pairs import CrossEncoder

    config = context.config
    folder = context / stage / "model" if stage else config.evaluate.rerank
    settings = config.retriever
    options = {"compute": settings.compute, "attention": settings.attention}
    return context.model("retriever", CrossEncoder.from_pretrained, folder, **options)


def encode(
    context: Context, system: str, texts: Sequence[str], kind: str, label: str = ""
) -> Vectors:
    """Unit vectors `[n e]` of texts by a system's retriever, or their `TokenVectors`.

    Args:
        kind: "query" or "document".
    """
    return load_retriever(context, system).encode(
        texts, kind=kind, batch_tokens=context.config.retriever.batch_tokens, label=label
    )


# Roles -> hub names on an accelerator. The default on a CPU are the demo's models, with which all
# published figures were measured.
ON_ACCELERATOR = {
    "retriever": "Qwen/Qwen3-Embedding-0.6B",
    "generator": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
TYPES = {"retriever": "compute", "generator": "dtype"}  # fields that may be "auto"


def suit_device(config) -> None:
    """Fills the config's empty model paths and "auto" types with values that suit the device.

    The types decide results, so manifests must name the type that was used.
    """
    name_models(config)
    for role, field in TYPES.items():
        if role in config and field in config[role]:
            config[role][field] = float_type(config[role][field], find_device())


def name_models(config) -> None:
    """Fills empty paths of `retriever` and `generator`, and prints a line for each.

    It fetches nothing: the folder of a demo model may not exist yet.
    """
    for role in ON_ACCELERATOR:
        if getattr(config.get(role), "path", None) != "":
            continue
        name, path, reason = _default_model(role)
        config[role].path = path
        say(f"{role}: {name}, since this run has {reason}; --config.{role}.path=... names another")


def default_path(role: str) -> str:
    """The folder or hub name of the retriever or generator of a config that names none."""
    return _default_model(role)[1]


def _default_model(role: str) -> tuple[str, str, str]:
    """A role's default model: published name, folder or hub name, and the reason for it."""
    if find_device().platform != "cpu":
        return ON_ACCELERATOR[role], ON_ACCELERATOR[role], "an accelerator"
    from ark_jax.demo import models

    return models.DEMO[role].published, str(models.model_folder(role)), "no accelerator"


def fetch_demo_models(paths) -> None:
    """Makes the folders among `paths` that belong to the demo's models; leaves others alone."""
    from ark_jax.demo import models
    from ark_jax.runtime.storage import cache_folder

    for path in paths:
        if model := models.demo_model_at(path):
            models.prepare(model, cache_folder())


def training_run(metrics: Metrics, folder: Path, stage: str, *, label: str = "") -> "Run":
    """The training of a stage in its folder, whose steps and pace go to `metrics`.

    Args:
        label: for progress lines and errors; empty: the stage.
    """
    from ark_jax.train.fit import Run

    on_step = functools.partial(metrics.step, stage)
    on_pace = functools.partial(metrics.write, stage)
    return Run(folder, label or stage, on_step, on_pace)


def first_and_last_loss(curve: Sequence[dict]) -> dict[str, float]:
    """`first_loss` and `last_loss` of a training curve, for the manifest."""
    first, last = (round(curve[i]["loss"], 4) for i in (0, -1))
    return {"first_loss": first, "last_loss": last}


def base_names(path: str) -> tuple[str, str]:
    """A model's short name, and its hub name; that of a local folder is empty."""
    local = Path(path).expanduser().exists()
    return (Path(path).name, "") if local else (path, path)


def copy_files(source: Path, target: Path) -> None:
    """Copies the files of a folder, with their subfolders."""
    # `shutil.copytree` reports a full disk as an error of its own kind.
    for file in source.rglob("*"):
        if file.is_file():
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def copy_model(source: Path, target: Path, base: str, dtype: str) -> None:
    """Copies a trained model's folder, with weights in `dtype`; empty: in the types of its base.

    Args:
        base: folder or hub name of the model that training began with.
    """
    from ark_jax.models import hf, pair_folder

    copy_files(source, target)
    weights = pair_folder.weights_folder(hf.resolve(base))
    for config in sorted(target.rglob("config.json")):
        if "model_type" in hf.read_json(config):  # not a module of sentence-transformers
            hf.cast_weights(config.parent, weights, dtype)


def settings_text(config, *sections: str) -> str:
    """The values of some config sections as a line of a model card."""
    values = {name: value for section in sections for name, value in config[section].items()}
    return f"Training settings: `{json.dumps(values, default=list)}`."


def describe_card(card: Path, title: str, description: str) -> None:
    """Gives the card of a pair scorer another title, and a text in front of how it is opened."""
    from ark_jax.models.model_card import plain_line

    front, _, body = card.read_text(encoding="utf-8").partition("\n# ")
    _, _, body = body.partition("\n")
    card.write_text(f"{front}\n# {plain_line(title)}\n\n{description}\n{body}", encoding="utf-8")
