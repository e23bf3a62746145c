"""Checks of the shared config sections that involve more than one field, or what is installed."""

import urllib.parse

from ark_jax.evaluate import answers, retrieval
from ark_jax.recipes.core.models import keeps_tokens
from ark_jax.retrieval.chunks import MOST_CHUNK_TOKENS
from ark_jax.runtime.accelerator import find_device, float_type


def check_shared_sections(config) -> None:
    """Refuses combinations of values on which a stage would fail, maybe hours from now.

    `schema.check` comes first: it looks at each value by itself.
    """
    check_basics(config)
    check_documents(config)
    if config.data.fold[1] and config.questions.source == "written":
        raise ValueError(
            "config.questions.source=written holds out all questions of the input: remove "
            "config.data.fold, or set config.questions.source=both"
        )
    check_base_url(config.judge.base_url, "judge")
    _check_expansion(config)
    _check_metrics(config.evaluate.metrics)
    _check_answers(config)


def check_basics(config) -> None:
    """Checks the shared sections of a recipe that asks language models for texts."""
    check_core(config)
    for role in ("llm", "reader"):
        check_base_url(config[role].base_url, role)


def check_core(config) -> None:
    """Checks the sections that every recipe has."""
    _check_mesh(config.mesh)
    _check_attention(config.retriever.attention, config.retriever.compute, "retriever.compute")
    _check_attention(config.generator.attention, config.generator.dtype, "generator.dtype")


def check_documents(config) -> None:
    """Checks the settings of documents and split."""
    _check_chunks(config.data)
    _check_fold(config)


def _check_mesh(mesh: tuple[int, int, int]) -> None:
    if 0 in mesh or list(mesh).count(-1) > 1:
        raise ValueError(
            f"config.mesh={tuple(mesh)}: must be three integers of at least 1; one of them may be "
            "-1, which takes the devices that are left"
        )


def _check_chunks(data) -> None:
    longest = data.chunk_tokens or MOST_CHUNK_TOKENS
    if data.chunk_overlap >= longest:
        is_set = f"which is {longest}" if data.chunk_tokens else f"which is at most {longest}"
        raise ValueError(
            f"config.data.chunk_overlap={data.chunk_overlap}: must be below "
            f"config.data.chunk_tokens, {is_set}"
        )


def _check_fold(config) -> None:
    fold, folds = config.data.fold
    if (fold, folds) != (0, 0) and not (1 <= fold <= folds and folds > 1):
        raise ValueError(
            f"config.data.fold={(fold, folds)}: must be a part from 1 on and the number of parts, "
            "at least 2, as in (1, 5); or (0, 0)"
        )


def _check_attention(kernel: str, dtype: str, field: str) -> None:
    if kernel == "cudnn" and float_type(dtype, find_device()) == "float32":
        section = field.split(".")[0]
        raise ValueError(
            f"config.{section}.attention=cudnn does not support float32: set "
            f"config.{field}=bfloat16, or config.{section}.attention=xla"
        )


def check_base_url(url: str, role: str) -> None:
    """Refuses what is not a web address, and an address that holds a secret."""
    if not _is_web_address(url):
        raise ValueError(
            f"config.{role}.base_url={url!r}: must be an address such as https://HOST/v1 or "
            "http://HOST:PORT/v1, or empty"
        )
    parts = urllib.parse.urlsplit(url)
    secret = "a name or password" if "@" in parts.netloc else "parameters" if parts.query else ""
    if secret:
        raise ValueError(
            f"config.{role}.base_url holds {secret}, and the run would write it to disk; put the "
            f"key into the environment variable that config.{role}.key_env names"
        )


def _is_web_address(url: str) -> bool:
    """Whether a client can send requests to `url`; the empty one is the client's default."""
    try:
        parts = urllib.parse.urlsplit(url)
        has_host = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an open bracket, or a port that is no number or too large
        return False
    return not url or bool(has_host and url.isprintable() and " " not in url)


def _check_expansion(config) -> None:
    if config.search.expand == "none":
        return
    if config.llm.backend == "none":
        raise ValueError(
            "config.search.expand=hyde has a language model write passages, and "
            "config.llm.backend=none is none: name one, or set config.search.expand=none"
        )
    if keeps_tokens(config):
        raise ValueError(
            "config.search.expand=hyde takes the mean of two vectors, and "
            "config.retriever.vectors=tokens keeps one for each token: change one of them"
        )


def _check_metrics(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            retrieval.parse_metric(name)
        except ValueError as error:
            raise ValueError(f"config.evaluate.metrics: {error}") from None


def _check_answers(config) -> None:
    names, backend = tuple(config.evaluate.answers), config.reader.backend
    if answers.LIKELIHOOD in names and backend != "local":
        raise ValueError(
            f"config.evaluate.answers={names}: {answers.LIKELIHOOD} needs the probabilities of a "
            f"local reader, and config.reader.backend={backend!r} gives none: leave it out, or set "
            "config.reader.backend=local"
        )
    if config.judge.repeats and not answers.needs_replies(names):
        raise ValueError(
            f"config.judge.repeats={config.judge.repeats} compares answers, and "
            f"config.evaluate.answers={names} has the reader write none: add answer_f1 to it, or "
            "set config.judge.repeats=0"
        )
