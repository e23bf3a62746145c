"""Calls of a language model in one of a run's roles: extraction, rewriting, reading, judging."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from ark_jax.evaluate.reading import ReadingPrompt
from ark_jax.llm import complete
from ark_jax.models.replies import write_replies
from ark_jax.pipeline.fingerprints import model_digest
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.core.models import load_generator, reader_path
from ark_jax.runtime import distributed
from ark_jax.runtime.log import say

PROMPTS = 1 << 15  # at once, on each device; many, since the last replies leave slots unused


def section_of(config, role: str) -> str:
    """The section of the config that says where a role's replies come from."""
    uses_llm = role == "questions" or (role == "rewriter" and not config.rewriter.backend)
    return "llm" if uses_llm else role


def llm_settings(config, role: str = "llm", path: str = "") -> complete.LLMSettings:
    """The settings of a role: its own section, and `config.llm` for fields that it lacks.

    A local model is named by its digest, so that replies belong to the weights that wrote them. If
    it draws its replies at random, the seed is part of the name. The role "questions" is that of
    `config.llm`, unless its replies are recorded; what the role "rewriter" leaves empty is too.

    Args:
        path: a local model in place of the one that the config names.
    """
    recording = config.questions.replies if role == "questions" else ""
    section = config[section_of(config, role)]
    named: dict[str, object] = {"backend": "replay" if recording else section.backend}
    if role == "rewriter":
        named |= _own_settings(config.rewriter, config.llm)
    if named["backend"] == "local":
        digest = model_digest(path or section.path or config.generator.path)
        seed = f" {config.seed}" if named.get("temperature", section.temperature) else ""
        named["model"] = f"{digest} {config.generator.dtype}{seed}"
    # A stage depends on each setting that it reads, so it reads none that it does not need.
    replies = recording or (config.llm.replies if named["backend"] == "replay" else "")
    named["replies"] = replies
    if role == "reader":
        named["max_tokens"] = config.evaluate.max_new_tokens
    for field in dataclasses.fields(complete.LLMSettings):
        if field.name not in named:
            named[field.name] = (section if field.name in section else config.llm)[field.name]
    return complete.LLMSettings(**named)


def _own_settings(rewriter, llm) -> dict[str, object]:
    """Fields of the rewriter that may be empty, which then are those of `llm`."""
    temperature = llm.temperature if rewriter.temperature < 0 else rewriter.temperature
    is_other = rewriter.backend or rewriter.model
    price = rewriter.price or (() if is_other else llm.price)
    return {"model": rewriter.model or llm.model, "temperature": temperature, "price": price}


def ask(
    context: Context,
    calls: Sequence[complete.Call],
    label: str,
    accept: complete.Accept,
    role: str = "llm",
    stop: tuple[str, ...] = (),
    form: ReadingPrompt | None = None,
) -> complete.Completions:
    """Answers the calls by the language model of a role, through the reply cache of the workdir.

    Args:
        label: what progress lines call this.
        accept: returns what is wrong with a reply, which is then asked for again, or None.
        role: llm, rewriter, questions, reader or judge.
        stop: strings before which a local model's replies end.
        form: how a local reader gets its prompts; None: as turns of a chat.
    """
    path = reader_path(context) if role == "reader" else ""
    # An error names the section in which its fields are set.
    inherits = role == "rewriter" and section_of(context.config, role) == "llm"
    own_fields = ("model", "temperature", "price") if inherits else context.config[role]
    settings = llm_settings(context.config, role, path)
    write = functools.partial(_write_locally, context, settings, role, label, stop, form, path)
    replies = context.workdir / "llm" / "replies.jsonl"
    local = settings.backend == "local"
    with (
        distributed.file_per_process(replies)
        if local
        else contextlib.nullcontext(replies) as cache,
        errors_of_role(role, own_fields),
    ):
        answers = complete.complete(calls, settings, cache, label, accept, write)
    _say_usage(label, answers.usage)
    return answers


@contextlib.contextmanager
def errors_of_role(role: str, fields: Iterable[str]) -> Iterator[None]:
    """Has errors name `ROLE.FIELD` where they speak of `llm.FIELD`, for the fields that it has."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        names = "|".join(fields)
        error.args = (re.sub(rf"\bllm\.({names})\b", rf"{role}.\1", str(error)),)
        raise


Conversations = Sequence[tuple[str, ...]]  # the turns of each
Receive = Callable[[int, dict], None]  # (number of the conversation, reply as of an endpoint)


def _write_locally(
    context: Context,
    settings: complete.LLMSettings,
    role: str,
    label: str,
    stop: tuple[str, ...],
    form: ReadingPrompt | None,
    path: str,
    conversations: Conversations,
    receive: Receive,
) -> None:
    """Gets replies from a local model and hands them over one by one.

    Prompts come in groups, so that memory need not hold all. A reply does not depend on the groups.
    """
    from ark_jax import layout

    config, section = context.config, section_of(context.config, role)
    lm, place = load_generator(context, path or config[section].path), 0
    prompt = lambda turns: form.for_model(lm, *turns) if form else lm.chat([*turns])
    groups = math.ceil(len(conversations) / (PROMPTS * layout.batch_multiple()))
    for number in range(groups):
        start, end = (len(conversations) * i // groups for i in (number, number + 1))
        place += write_replies(
            lm,
            list(map(prompt, conversations[start:end])),
            lambda i, reply, start=start: receive(start + i, reply),
            max_new_tokens=settings.max_tokens,
            fix=f"set config.{_limit(config, role, section)} or config.data.chunk_tokens lower",
            temperature=settings.temperature,
            top_p=settings.top_p,
            seed=config.seed,
            first_place=place,  # random draws depend on it
            stop=stop,
            batch_tokens=config.generator.batch_tokens,
            label=f"{label} {number + 1}/{groups}" if groups > 1 else label,
        )


def _limit(config, role: str, section: str) -> str:
    """The field of the config that limits a reply."""
    if role == "reader":
        return "evaluate.max_new_tokens"
    return f"{section if 'max_tokens' in config[section] else 'llm'}.max_tokens"


def _say_usage(label: str, usage) -> None:
    counts = {
        "requests": usage.requests,
        "already answered": usage.cached,
        "asked again": usage.asked_again,
        "retries": usage.retries,
        "tokens in": usage.input_tokens,
        "tokens out": usage.output_tokens,
    }
    if usage.requests:
        cost = f", ${usage.cost:.2f}" if usage.cost else ""
        say(f"  {label}: {', '.join(f'{n:,} {name}' for name, n in counts.items() if n)}{cost}")
