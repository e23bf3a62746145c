"""Replies that an engine samples in another process, vLLM or SGLang, with the weights trained here.

Engine and run see one folder. Weights that are to draw replies are written there, and the engine is
told to read them. Only token ids are taken from it: all log-probabilities that a loss needs are
computed here, by the model that is trained. The engine's own serve to check that it has the weights
in question: it may not have read them, or may have been started anew with older ones.
"""

import asyncio
import dataclasses
import hashlib
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ark_jax.llm.conversations import LLMSettings
from ark_jax.llm.endpoint import Endpoint
from ark_jax.llm.errors import EndpointUnusable, RequestRejected, RetriesExhausted
from ark_jax.pipeline.stage import Context
from ark_jax.recipes.bar_rag.config import RolloutSection
from ark_jax.recipes.core.ask import errors_of_role
from ark_jax.runtime import distributed
from ark_jax.runtime.log import Progress

if TYPE_CHECKING:  # these modules start jax
    from ark_jax.models.language import LanguageModel
    from ark_jax.models.rollout import Rollouts

FIELDS = [field.name for field in dataclasses.fields(RolloutSection)]
CHECKED = 8  # prompts of a call with which the engine's weights are checked
CHECKED_TOKENS = 16  # most tokens of each reply of the check

Sample = Callable[..., "Rollouts"]  # arguments and result as of `LanguageModel.sample`


def sampler(context: Context) -> Sample:
    """What samples replies for a stage: the model itself, or an engine with its weights.

    The engine is one for all stages, since it must know whose weights the engine has.
    """
    settings = context.config.rollout
    if settings.backend == "local":
        from ark_jax.models.language import LanguageModel

        return LanguageModel.sample
    names = ("engine", "model", "key_env", "concurrency", "timeout", "retries", "tolerance")
    options = {name: settings[name] for name in names}
    return context.model("rollout", RolloutEngine, settings.base_url, **options).sample


def call_settings(config) -> LLMSettings:
    """The engine as a language model that is asked, for `ark-jax plan`."""
    names = ("backend", "model", "base_url", "key_env", "price")
    names += ("concurrency", "timeout", "retries")
    return LLMSettings(
        **{name: config.rollout[name] for name in names},
        temperature=config.read.temperature,
        max_tokens=config.read.max_new_tokens,
        requests_per_minute=0,
        tokens_per_minute=0,
        reasks=0,
        max_cost=0.0,
        replies="",
    )


class Draws(NamedTuple):
    """How replies to a prompt are drawn: from all tokens, with no penalty."""

    n: int
    max_new_tokens: int
    temperature: float
    top_p: float
    stop_ids: tuple[int, ...]


class Reply(NamedTuple):
    """A sampled reply, as an engine gives it."""

    ids: list[int]
    log_probs: list[float]  # of each token; empty if they were not asked for
    finish: str  # why it ended: stop, length or another word


# Fields that keep an engine from the sampling defaults of a model's generation_config.json.
ALL_TOKENS = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
ALL_TOKENS |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
Call = tuple[str, dict]  # path from the root of the address, body


class VLLM:
    """vLLM from 0.10.2 on: completions of OpenAI's form, with token ids.

    `START` is the command that starts it.
    """

    START = "VLLM_SERVER_DEV_MODE=1 vllm serve {model}"

    @staticmethod
    def request(model: str, prompt: list[int], draws: Draws, seed: int, scored: bool) -> Call:
        """Asks for `draws.n` replies to a prompt, with their log-probabilities if `scored`.

        Sample i gets the seed `seed + i`.
        """
        body = {
            "model": model,
            "prompt": prompt,
            "n": draws.n,
            "max_tokens": draws.max_new_tokens,
            "temperature": draws.temperature,
            "top_p": draws.top_p,
            **ALL_TOKENS,
            "seed": seed,
            "stop_token_ids": list(draws.stop_ids),
            "return_token_ids": True,
        }
        return "/v1/completions", body | ({"logprobs": 1} if scored else {})

    @staticmethod
    def replies(answer: Any) -> list[Reply]:
        """The replies in an answer; LookupError or TypeError if it has another form."""
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        scores = [(choice.get("logprobs") or {}).get("token_logprobs", []) for choice in choices]
        return [
            Reply(choice["token_ids"], score, choice["finish_reason"])
            for choice, score in zip(choices, scores, strict=True)
        ]

    @staticmethod
    def reload(model: str) -> list[Call]:
        """Has the engine read its folder again, and forget what it computed before.

        A killed run may have left requests, which hold on to the cache.
        """
        return [
            ("/collective_rpc", {"method": "reload_weights"}),
            ("/reset_prefix_cache?reset_running_requests=true", {}),
        ]


class SGLang:
    """SGLang from 0.5.3 on, by its own form: that of OpenAI's has token ids in newer versions only.

    Its log-probabilities are those at the temperature of the request.
    """

    START = "python -m sglang.launch_server --model-path {model}"

    @staticmethod
    def request(model: str, prompt: list[int], draws: Draws, seed: int, scored: bool) -> Call:
        """The prompt is sent n times: n samples of one would share its seed."""
        parameters = {
            "max_new_tokens": draws.max_new_tokens,
            "temperature": draws.temperature,
            "top_p": draws.top_p,
            **ALL_TOKENS,
            "stop_token_ids": list(draws.stop_ids),
        }
        seeds = [{"sampling_seed": seed + i} for i in range(draws.n)]
        body = {
            "input_ids": [prompt] * draws.n,
            "sampling_params": [parameters | seed_field for seed_field in seeds],
            "return_logprob": True,  # the ids come with them
        }
        return "/generate", body

    @staticmethod
    def replies(answer: Any) -> list[Reply]:
        metas = [part["meta_info"] for part in answer]
        return [
            Reply(
                [token[1] for token in meta["output_token_logprobs"]],
                [token[0] for token in meta["output_token_logprobs"]],
                meta["finish_reason"]["type"],
            )
            for meta in metas
        ]

    @staticmethod
    def reload(model: str) -> list[Call]:
        """It forgets its cache of prefixes by itself."""
        return [("/update_weights_from_disk", {"model_path": model})]


FORMS: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "sglang": SGLang}


class RolloutEngine:
    """An engine behind an address, and whose weights it has.

    Args:
        base_url: the address, which may end in /v1.
        engine: a key of `FORMS`.
        model: the folder through which weights are handed over, as the engine was started with.
        tolerance: largest mean difference of its log-probabilities of tokens from ours, in nats.
        key_env, concurrency, timeout, retries: as the fields of `config.llm`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        engine: str,
        model: str,
        key_env: str,
        concurrency: int,
        timeout: float,
        retries: int,
        tolerance: float,
    ):
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._form, self._model, self._tolerance = FORMS[engine], model, tolerance
        self._concurrency = concurrency
        self._client = {"base_url": base_url, "model": model, "key_env": key_env}
        self._limits = {"timeout": timeout, "retries": retries}
        self._loaded: weakref.ref | None = None  # the weights that the engine has

    def sample(
        self,
        lm: "LanguageModel",
        prompts: Sequence[str],
        *,
        n: int,
        max_new_tokens: int,
        seed: int,
        temperature: float,
        top_p: float,
        places: np.ndarray,
        log_probs: bool,
        batch_tokens: int = 0,
        label: str = "",
    ) -> "Rollouts":
        """Draws n replies of a model to each prompt, as `LanguageModel.sample` does.

        Draws follow from the seed, the prompt's place and the number of the sample in an engine
        that keeps to its seeds. The model's weights are handed over unless the engine has them.

        Raises:
            RuntimeError: the engine fails, or has other weights; the message says what to do.
        """
        self._hand_over(lm)
        prompt_ids = [np.asarray(ids) for ids in lm.prompt_ids(prompts)]
        seeds = [_request_seed(seed, place) for place in places]
        draws = Draws(n, max_new_tokens, temperature, top_p, lm.stop_ids)
        length = min(max_new_tokens, CHECKED_TOKENS)
        check = draws._replace(n=1, max_new_tokens=length, temperature=1.0, top_p=1.0)
        listed = [ids.tolist() for ids in prompt_ids]
        calls = [
            (self._form.request(self._model, ids, rule, own_seed, rule is check), rule)
            for rule, part in ((draws, len(prompts)), (check, CHECKED))
            for ids, own_seed in zip(listed[:part], seeds[:part], strict=True)
        ]
        vocab = lm.cfg.vocab
        ask = lambda: asyncio.run(self._replies_to(calls, vocab, label))
        replies = [Reply(*reply) for reply in distributed.on_first_process(ask)]
        drawn, checked = replies[: n * len(prompts)], replies[n * len(prompts) :]
        self._check_weights(lm, prompt_ids[:CHECKED], checked, batch_tokens)
        ids = [np.array(reply.ids, np.int32) for reply in drawn]
        return lm.as_rollouts(
            prompt_ids, ids, n, log_probs=log_probs, batch_tokens=batch_tokens, label=label
        )

    def _hand_over(self, lm: "LanguageModel") -> None:
        """Gives the engine the weights of a model, in the type in which the model computes."""
        if self._loaded is not None and self._loaded() is lm.model:
            return
        self._loaded = None
        lm.save_pretrained(self._model, dtype=lm.cfg.compute)
        distributed.on_first_process(lambda: asyncio.run(self._reload()))
        self._loaded = weakref.ref(lm.model)

    async def _reload(self) -> None:
        """Has the engine read its folder again."""
        async with self._endpoint() as endpoint:
            for path, body in self._form.reload(self._model):
                answer = await self._post(endpoint, path, body)
                if isinstance(answer, dict) and answer.get("success") is False:
                    raise RuntimeError(
                        f"{self._root}{path} has not taken the weights in config.rollout.model="
                        f"{self._model}: {answer}; {self._start_it()}"
                    )

    async def _replies_to(
        self, calls: Sequence[tuple[Call, Draws]], vocab: int, label: str
    ) -> list[Reply]:
        """The replies to all calls, in their order."""
        slots = asyncio.Semaphore(self._concurrency)
        bar = Progress(label or "sample", len(calls), "calls", interval=10 if label else math.inf)
        async with self._endpoint() as endpoint:

            async def ask(call: Call, draws: Draws) -> list[Reply]:
                async with slots:
                    answer = await self._post(endpoint, *call)
                try:
                    replies = self._form.replies(answer)
                    problem = _problem_of(replies, draws, vocab)
                except (LookupError, TypeError, AttributeError):
                    problem = f"an answer without token ids; {self._start_it()}"
                if problem:
                    raise RuntimeError(
                        f"{self._root}, see config.rollout.base_url, gives {problem}"
                    )
                bar.add()
                return replies

            with bar:
                answers = await asyncio.gather(*(ask(*call) for call in calls))
        return [reply for replies in answers for reply in replies]

    def _endpoint(self) -> Endpoint:
        unlimited = {"requests_per_minute": 0, "tokens_per_minute": 0}
        unused = {"temperature": 1.0, "max_tokens": 1}  # of chats
        with errors_of_role("rollout", FIELDS):
            return Endpoint(**self._client, **self._limits, **unlimited, **unused)

    async def _post(self, endpoint: Endpoint, path: str, body: dict) -> Any:
        """The engine's answer.

        Raises:
            RuntimeError: there is none; the message says what to do.
        """
        with errors_of_role("rollout", FIELDS):
            try:
                return await endpoint.post(f"{self._root}{path}", body)
            except RetriesExhausted as error:
                advice = "run the same command again once the engine answers: finished steps stay"
                raise RuntimeError(f"{self._root}{path}: {error}; {advice}") from None
            except (EndpointUnusable, RequestRejected) as error:
                raise RuntimeError(f"{self._root}{path}: {error}; {self._start_it()}") from None

    def _start_it(self) -> str:
        return f"start the engine as `{self._form.START.format(model=self._model)}`"

    def _check_weights(
        self,
        lm: "LanguageModel",
        prompt_ids: Sequence[np.ndarray],
        replies: Sequence[Reply],
        batch_tokens: int,
    ) -> None:
        """Refuses an engine whose log-probabilities of its replies are not those of the model."""
        ids = [np.array(reply.ids, np.int32) for reply in replies]
        computed = np.concatenate(
            lm.token_log_likelihood(prompt_ids, ids, batch_tokens=batch_tokens)
        )
        theirs = np.concatenate([np.array(reply.log_probs, float) for reply in replies])
        if computed.shape != theirs.shape:
            raise RuntimeError(
                f"{self._root}, see config.rollout.base_url, gives {theirs.size} log-probabilities "
                f"of {computed.size} tokens; {self._start_it()}"
            )
        difference = float(np.abs(computed - theirs).mean())
        if not difference <= self._tolerance:
            raise RuntimeError(
                f"the engine at {self._root} does not have the weights in config.rollout.model="
                f"{self._model}: its log-probabilities of {computed.size} tokens differ from ours "
                f"by {difference:.3g} nats in the mean, more than config.rollout.tolerance="
                f"{self._tolerance}; {self._start_it()}, or allow more if it is quantised"
            )


def _request_seed(seed: int, place: np.ndarray) -> int:
    """The seed of a prompt's draws, from 0 to 2**31 - 1; that of sample i is larger by i."""
    digest = hashlib.sha256(" ".join(map(str, [seed, *place])).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _problem_of(replies: Sequence[Reply], draws: Draws, vocab: int) -> str:
    """What is wrong with the replies to a prompt; empty if nothing is."""
    if len(replies) != draws.n:
        return f"{len(replies)} replies to a prompt, of {draws.n} that were asked for"
    for reply in replies:
        size, last = len(reply.ids), reply.ids[-1] if reply.ids else None
        if not 0 < size <= draws.max_new_tokens:
            return f"a reply of {size} tokens, where 1 to {draws.max_new_tokens} were asked for"
        if not 0 <= min(reply.ids) <= max(reply.ids) < vocab:
            return (
                f"token ids {min(reply.ids)} to {max(reply.ids)}, but the model has {vocab:,} "
                "tokens: it serves another model"
            )
        if not set(draws.stop_ids).isdisjoint(reply.ids[:-1]):
            return "a reply that goes on after the token that ends a text"
        if last not in draws.stop_ids and size < draws.max_new_tokens:
            return (
                f"a reply of {size} tokens (finish_reason={reply.finish}) that neither ends nor "
                f"has the {draws.max_new_tokens} that it may: start it with a longer context"
            )
    return ""
