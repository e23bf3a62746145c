"""The models of a run, loaded once and kept in memory, and the models of empty paths."""

from collections.abc import Sequence
from pathlib import Path

from ark_jax.pipeline.stage import Context
from ark_jax.runtime.accelerator import find_device, float_type
from ark_jax.runtime.log import say
from ark_jax.text.token_vectors import Vectors

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
        given = {kind: prompt for kind, prompt in settings.prompts.items() if prompt}
        options |= {"prompts": given} if given else {}
    return context.model("retriever", open_model, path, **options)


def keeps_tokens(config) -> bool:
    """Whether the tuned retriever keeps a vector for each token; only ARK can."""
    return config.retriever.get("vectors", "text") == "tokens"


def load_base_scorer(context: Context):
    """The retriever before training as a `CrossEncoder`, whose logits are cosines."""
    from ark_jax.models.pairs import CrossEncoder

    return CrossEncoder.from_retriever(load_retriever(context))


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
    """Makes the folders among `paths` that belong to the demo's models; leaves other paths alone.

    Raises:
        RuntimeError: pip, network, gguf or disk space is missing. The message says the fix.
    """
    from ark_jax.demo import models
    from ark_jax.runtime.storage import cache_folder

    for path in paths:
        if model := models.demo_model_at(path):
            models.prepare(model, cache_folder())
