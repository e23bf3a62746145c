"""Fingerprints of a stage's dependencies outside the workdir: input, models, prompts, an LLM.

Each function here returns `config -> {name: fingerprint}`, a `Stage.external`.
"""

from collections.abc import Callable
from pathlib import Path

from ark_jax.pipeline import own_functions
from ark_jax.pipeline.fingerprints import file_digest, input_digest, model_digest
from ark_jax.pipeline.stage import setting
from ark_jax.recipes.common.ask import llm_settings
from ark_jax.recipes.common.models import keeps_tokens
from ark_jax.text import prompts

Fingerprints = Callable[[object], dict[str, str]]
COMPUTE = ("retriever.compute",)  # what of its settings decides a retriever's vectors


def writer_settings(config) -> tuple[str, ...]:
    """The fields of `llm` that decide what it writes; one that is not asked decides nothing."""
    if config.llm.backend == "none":
        return ("llm.backend",)
    names = ("backend", "model", "base_url", "temperature", "max_tokens", "reasks")
    return tuple(f"llm.{name}" for name in names)


def all_of(*dependencies: Fingerprints) -> Fingerprints:
    """The fingerprints of several dependencies together."""
    return lambda config: {
        name: value for prints in dependencies for name, value in prints(config).items()
    }


def input_files(config) -> dict[str, str]:
    data = config.data
    named = {"questions": data.questions, "test": data.test}
    digests = {part: input_digest(path) for part, path in named.items() if path}
    return {"input": input_digest(data.path), **digests}


def models(*sections: str) -> Fingerprints:
    """The models that `config.SECTION.path` names."""
    return lambda config: {section: model_digest(config[section].path) for section in sections}


def base_vectors(config) -> dict[str, str]:
    """The retriever before training, and what it gives vectors to."""
    digest = model_digest(config.retriever.path)
    return {"retriever": f"{digest} by tokens" if keeps_tokens(config) else digest}


def compared_retrievers(config) -> dict[str, str]:
    """The retrievers of `evaluate.retrievers`."""
    return {f"retriever {path}": model_digest(path) for path in config.evaluate.retrievers}


def reranker(config) -> dict[str, str]:
    """The model of `evaluate.rerank`, and the type in which a decoder computes."""
    path = config.evaluate.rerank
    return {"reranker": f"{model_digest(path)} {config.generator.dtype}"} if path else {}


def own_functions_of(*fields: str) -> Fingerprints:
    """The files of the user's own functions, of the fields that name one."""

    def fingerprints(config) -> dict[str, str]:
        named = {field: setting(config, field) for field in fields}
        paths = {field: path for field, path in named.items() if own_functions.is_own(path)}
        return {
            f"file of {path}": own_functions.digest(field, path) for field, path in paths.items()
        }

    return fingerprints


def prompt_texts(*names: str) -> Fingerprints:
    def fingerprints(config) -> dict[str, str]:
        texts = {name: prompts.load_template(name, config.prompts[name]) for name in names}
        return {f"prompt {name}": prompts.text_digest(text) for name, text in texts.items()}

    return fingerprints


def expansion_settings(config) -> tuple[str, ...]:
    """The fields that decide what `search.expand` finds; none if it is "none"."""
    expands = config.search.expand != "none"
    return ("search.expand", *writer_settings(config)) if expands else ()


def expansion(config) -> dict[str, str]:
    """The prompt and the language model of `search.expand`."""
    if config.search.expand == "none":
        return {}
    return all_of(prompt_texts("hyde"), language_model("llm"))(config)


def language_model(role: str) -> Fingerprints:
    """The model that replies in a role, by name or by content; the recording if one is replayed."""

    def fingerprints(config) -> dict[str, str]:
        settings = llm_settings(config, role)
        recording = Path(settings.replies)
        replayed = settings.backend == "replay" and recording.is_file()
        return {
            role: settings.model if settings.backend != "none" else "",
            "replies": file_digest(recording) if replayed else "",
        }

    return fingerprints
