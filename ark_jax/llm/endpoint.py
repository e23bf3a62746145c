"""A client of one OpenAI-compatible endpoint. It keeps rate limits, retries and hides the API key.

The official client sends the requests. Its own retries are off, since it treats each request alone:
here a status 429 pauses all requests, and rate limits are kept rather than hit.
"""

import asyncio
import functools
import json
import math
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ark_jax.llm import errors
from ark_jax.llm.errors import EndpointUnusable, RequestRejected, RetriesExhausted, TransientError
from ark_jax.llm.pricing import drop_false_counts
from ark_jax.llm.reply_cache import content_text

MINUTE = 60.0  # seconds over which the rate limits hold
BACKOFF = 1.0  # seconds; the longest first wait, which doubles with each retry
MAX_BACKOFF = 60.0  # seconds
CONNECT_TIMEOUT = 10.0  # seconds
MAX_REPLY = 16 * 2**20  # bytes of a reply, decompressed
STALL = 60.0  # seconds between two parts of a reply that has begun
MAX_DIGITS = 18  # of a whole number in a reply
# Retries of an empty reply, and of an address that refuses connections and has never answered. Both
# rarely succeed, and every empty reply is paid for.
MAX_COSTLY_RETRIES = 2


class RateLimiter:
    """A token bucket: at most `per_minute` in any minute, 0 for no limit.

    It holds a twentieth of the limit, and refills the rest evenly over the minute.
    """

    def __init__(self, per_minute: float):
        self.per_minute, self.burst = per_minute, per_minute / 20
        self.rate = (per_minute - self.burst) / MINUTE
        self.level, self._updated = self.burst, time.monotonic()

    def wait_seconds(self, amount: float) -> float:
        """Seconds until `amount` may be taken.

        A full bucket allows even more than it holds; its level is then negative.
        """
        if not self.rate:
            return 0.0
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self._updated) * self.rate)
        self._updated = now
        return max(0.0, min(amount, self.burst) - self.level) / self.rate

    def take(self, amount: float) -> None:
        """Takes `amount` from the bucket, or gives it back if negative.

        The debt is at most two minutes of the limit, however many tokens a server counts.
        """
        self.level = max(self.level - amount, -2 * self.per_minute)


class Endpoint:
    """Sends requests within the endpoint's limits.

    It is an async context manager, used in one event loop.

    Args:
        base_url: "" for the client's default address.
        key_env: the environment variable that holds the key.
        max_tokens: most tokens of a reply.
        timeout: most seconds that a whole reply may take.
        retries: per request, after transient errors. A 429 does not count while other requests
            succeed.
        requests_per_minute: 0 for no limit.
        tokens_per_minute: 0 for no limit. A request's tokens are estimated from earlier replies
            before it is sent, and corrected by its own reply.
        partial: is called with the text of a reply so far, which is then streamed; what it raises
            ends the reply.

    Raises:
        RuntimeError: the client is not installed, or there is no usable key.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str,
        key_env: str,
        temperature: float,
        max_tokens: int,
        timeout: float,
        retries: int,
        requests_per_minute: int,
        tokens_per_minute: int,
        top_p: float = 1.0,
        partial: Callable[[str], None] | None = None,
    ):
        try:
            import openai
        except ImportError:
            raise RuntimeError(
                "llm.backend=openai needs the client: pip install 'ark-jax[llm]'"
            ) from None
        key = _read_key(key_env, base_url)
        self._redact = functools.partial(errors.redact, key=key)
        self.retries_made = 0
        self.in_flight = 0  # requests whose replies are awaited
        self.closing = False  # set once nothing more may be sent
        self.unused: list[dict] = []  # completions without a usable text, which are paid for
        self._openai, self._timeout, self._retries = openai, timeout, retries
        self._client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=base_url or None,
            max_retries=0,
            timeout=openai.Timeout(None, connect=min(timeout, CONNECT_TIMEOUT)),
            # A redirect would send the documents to an address that nobody has named.
            http_client=openai.DefaultAsyncHttpxClient(
                follow_redirects=False, event_hooks={"response": [self._read_body]}
            ),
        )
        self._parameters = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
        self._parameters |= {"top_p": top_p} if top_p < 1 else {}
        self._partial, self._stopped = partial, None  # the latter: what `partial` has raised
        if partial:
            self._parameters |= {"stream": True, "stream_options": {"include_usage": True}}
        self._unsupported: set[str] = set()  # parameters that the model does not take
        self._queue = asyncio.Lock()
        self._requests = RateLimiter(requests_per_minute)
        self._tokens = RateLimiter(tokens_per_minute)
        self._paused_until = 0.0
        self._connected = False  # whether the address has ever replied
        self._answered = 0  # requests
        # First guesses, corrected by each reply: four bytes per token, and short replies.
        self._tokens_per_byte, self._reply_tokens, self._replies = 0.25, max_tokens / 4, 0

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_) -> None:
        await self._client.close()

    async def ask(self, messages: list[dict]) -> dict:
        """Sends a conversation and returns the chat completion as a dict without nulls.

        It has a text in `choices[0].message.content`. One that was cut at `max_tokens` has
        `finish_reason` "length".

        Raises:
            RequestRejected, RetriesExhausted, EndpointUnusable: see `errors`.
        """
        return await self._until_answered(functools.partial(self._attempt, messages))

    async def post(self, path: str, body: dict) -> Any:
        """Sends a body to any path, as patiently as `ask`; returns the JSON of the reply.

        Args:
            path: below the base URL, or a whole address.

        Returns:
            None for a reply without a body.

        Raises:
            RequestRejected, RetriesExhausted, EndpointUnusable: see `errors`.
        """
        return await self._until_answered(functools.partial(self._post, path, body))

    async def _until_answered(self, attempt: Callable[[], Awaitable]) -> Any:
        """The result of an attempt, repeated while its errors may pass."""
        attempts, failures = 0, Counter()
        while True:
            answered_before = self._answered
            try:
                return await attempt()
            except TransientError as error:
                failure = error
            attempts += 1
            kind = failure.final_error
            failures[kind] += not (failure.busy and self._answered > answered_before)
            if failures[kind] > self._allowed_retries(kind):
                raise kind(f"{failure} ({attempts} times)" if attempts > 1 else str(failure))
            self.retries_made += 1
            # Full jitter on top of the server's wait: requests refused together do not return
            # together.
            backoff = min(MAX_BACKOFF, BACKOFF * 2 ** (attempts - 1))
            wait = failure.wait + random.random() * backoff
            if failure.busy:
                pause_end = time.monotonic() + (failure.wait or wait)
                self._paused_until = max(self._paused_until, pause_end)
            await asyncio.sleep(wait)

    def _allowed_retries(self, kind: type[RuntimeError]) -> int:
        """How often a request is retried, by the error that would end it."""
        return self._retries if kind is RetriesExhausted else min(MAX_COSTLY_RETRIES, self._retries)

    async def _attempt(self, messages: list[dict]) -> dict:
        """Sends a request and returns its completion.

        If the model does not support a parameter, the request is sent again without it.
        """
        size = len(json.dumps(messages, ensure_ascii=False).encode(errors="replace"))
        while True:
            parameters = self._supported_parameters() | {"messages": messages}
            estimate = await self._wait_for_turn(size)
            status, headers, body = await self._send("/chat/completions", parameters)
            self._connected = True
            if status == 200:
                reply = self._parse_completion(body)
                self._correct_estimates(reply, size, estimate)
                if problem := errors.classify_completion(reply, self._redact):
                    self.unused.append(reply)
                    raise problem
                self._answered += 1
                return reply
            if 300 <= status < 400:
                raise self._redirect_error(status, headers)
            message = errors.error_message(body)  # with the key, which may be a word in it
            optional = ("max_tokens", "temperature", "top_p", "stream_options")
            named = {name for name in optional if name in parameters and name in message}
            is_unsupported = re.search("not support|unsupported", message, re.I)
            if status != 400 or not named or not is_unsupported:
                raise errors.classify_status(status, headers, self._redact(message))
            self._unsupported |= named
            self.retries_made += 1

    async def _post(self, path: str, body: dict) -> Any:
        """Sends a body once and returns the JSON of the reply."""
        await self._wait_for_turn(len(json.dumps(body)))
        status, headers, text = await self._send(path, body)
        self._connected = True
        if status != 200:
            if 300 <= status < 400:
                raise self._redirect_error(status, headers)
            raise errors.classify_status(status, headers, self._redact(errors.error_message(text)))
        try:
            reply = _parse_json(text) if text.strip() else None
        except (ValueError, RecursionError):
            if text.lstrip()[:1] in ("{", "["):
                raise TransientError("a reply cut off in the middle") from None
            raise EndpointUnusable(
                f"{self._address()}, see config.llm.base_url, gives no JSON but "
                f"{self._redact(text)!r}"
            ) from None
        self._answered += 1
        return reply

    def _supported_parameters(self) -> dict:
        """The parameters of a request without those that the model refused."""
        parameters = dict(self._parameters)
        if "max_tokens" in self._unsupported:  # newer models have another name for it
            parameters["max_completion_tokens"] = parameters.pop("max_tokens")
        for name in self._unsupported - {"max_tokens"}:
            del parameters[name]
        return parameters

    async def _wait_for_turn(self, size: int) -> float:
        """Waits for the end of a pause and for the rate limits, first come first served.

        Args:
            size: bytes of the prompt.

        Returns:
            The tokens that were taken from the limit.
        """
        async with self._queue:
            while True:
                if self.closing:
                    raise RetriesExhausted("not sent: no request can succeed any more")
                reply_tokens = min(self._parameters["max_tokens"], self._reply_tokens)
                tokens = size * self._tokens_per_byte + reply_tokens
                pause = self._paused_until - time.monotonic()
                wait = max(pause, self._requests.wait_seconds(1), self._tokens.wait_seconds(tokens))
                if wait <= 0:
                    break
                # Not the whole wait, since a reply that arrives may shorten it.
                await asyncio.sleep(min(wait, MINUTE / 60))
            self._requests.take(1)
            self._tokens.take(tokens)
            return tokens

    async def _send(self, path: str, parameters: dict) -> tuple[int, Mapping[str, str], str]:
        """Sends a request to a path; returns status, headers and body of the reply.

        Raises:
            TransientError, RequestRejected: there is no reply, or the prompt is not Unicode.
        """
        self.in_flight += 1
        try:
            async with asyncio.timeout(self._timeout):
                # `chat.completions.create` takes a third more time, and hides whether a bad body
                # was cut off or came from a wrong address.
                post = self._client.post(path, cast_to=str, body=parameters)
                return 200, {}, await post
        except self._openai.APIStatusError as error:
            return error.status_code, error.response.headers, error.response.text
        except self._openai.APIConnectionError as error:
            if self._stopped:
                raise self._stopped from None
            raise self._connection_error(error.__cause__) from None
        except TimeoutError:
            reason = f"no reply within {self._timeout:g} s, see config.llm.timeout"
            raise TransientError(reason) from None
        except UnicodeEncodeError:
            raise RequestRejected(
                "the prompt is not Unicode text: it holds half of a surrogate pair"
            ) from None
        finally:
            self.in_flight -= 1

    async def _read_body(self, response) -> None:
        """Reads a body as UTF-8 with or without a BOM, whatever charset the server declares.

        That of a stream becomes the completion whose pieces it holds, or is empty if it breaks off.
        """
        response.encoding = "utf-8-sig"
        if self._partial and "event-stream" in response.headers.get("content-type", ""):
            try:
                body = json.dumps(await self._join_events(_events(response))).encode()
            except (ValueError, RecursionError):
                if self._stopped:
                    raise
                body = b""
        else:
            body = b"".join([part async for part in _bounded(response)])
        response._content = body  # as `aread` does, which has no bound

    async def _join_events(self, events: AsyncIterator[dict]) -> dict:
        """The completion whose pieces are in events, or the error that one of them holds.

        Raises:
            ValueError: an event has another form, or the reply has no end.
        """
        reply, text, refusal, finish = {}, "", "", None
        async for event in events:
            match event:
                case {"error": dict()}:
                    return event
                case {"choices": [{"delta": dict(delta), **choice}, *_]}:
                    text += content_text(delta.get("content")) or ""
                    refusal += delta.get("refusal") or ""
                    finish = choice.get("finish_reason") or finish
                case {"choices": list()}:
                    pass
                case _:
                    raise ValueError(f"no piece of a completion: {event!r}")
            reply |= {name: x for name, x in event.items() if name != "choices" and x is not None}
            try:
                self._partial(text)
            except Exception as error:
                self._stopped = error
                raise
        if not finish:
            raise ValueError("the reply has no end")
        message = {"role": "assistant", "content": text, "refusal": refusal or None}
        return reply | {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}

    def _connection_error(self, cause: BaseException | None) -> TransientError:
        """The error of a failed connection; of an address that never answered it ends the run."""
        name = type(cause).__name__
        reason = self._redact(f"{name}: {cause}")
        if self._connected or name not in ("ConnectError", "ConnectTimeout", "UnsupportedProtocol"):
            return TransientError(reason)
        reason = f"nothing answers at {self._address()}, see config.llm.base_url: {reason}"
        return TransientError(reason, final_error=EndpointUnusable)

    def _redirect_error(self, status: int, headers: Mapping[str, str]) -> EndpointUnusable:
        """The error of a redirect, which is never followed."""
        target = self._redact(headers.get("location", "an address that it does not name"))
        return EndpointUnusable(
            f"status {status}: {self._address()} sends requests on to {target.partition('?')[0]}, "
            "and nothing was sent there; if your documents may go there, set config.llm.base_url "
            "to that address without /chat/completions"
        )

    def _parse_completion(self, body: str) -> dict:
        """The completion in a body of status 200.

        Raises:
            TransientError, EndpointUnusable, RequestRejected: the body holds no completion.
        """
        try:
            reply = drop_false_counts(errors.drop_nulls(_parse_json(body)))
        except RecursionError:  # no completion is nested so deeply
            reply = None
        except ValueError:
            reply = None
            if body.lstrip()[:1] in ("{", ""):
                raise TransientError("a reply cut off in the middle") from None
        match reply:
            case {"choices": []}:
                return reply
            case {"choices": [{"message": dict(message)}, *_]} if isinstance(
                text := content_text(message.get("content")), str
            ):
                message["content"] = text
                return reply
            # OpenRouter reports a provider's error in this form.
            case {"error": {"code": int(status), **fields}} if 400 <= status < 600:
                message = self._redact(str(fields.get("message", fields)))
                raise errors.classify_status(status, {}, message)
        problem = f"no chat completion but {self._redact(body)!r}"
        if self._answered:
            raise TransientError(problem)
        raise EndpointUnusable(f"{self._address()}, see config.llm.base_url, gives {problem}")

    def _address(self) -> str:
        """The base URL, without secrets."""
        return self._redact(str(self._client.base_url))

    def _correct_estimates(self, reply: dict, size: int, estimate: float) -> None:
        """Replaces a request's estimated tokens by the real ones and updates the running means."""
        match reply:
            case {"usage": {"prompt_tokens": int(prompt_tokens), "total_tokens": int(total)}}:
                self._tokens.take(total - estimate)
                self._replies += 1
                weight = max(0.1, 1 / self._replies)
                # Not `completion_tokens`: some servers count thinking in the total only.
                reply_tokens = max(0, total - prompt_tokens)
                self._reply_tokens += weight * (reply_tokens - self._reply_tokens)
                self._tokens_per_byte += weight * (prompt_tokens / size - self._tokens_per_byte)


async def _bounded(response) -> AsyncIterator[bytes]:
    """The parts of a body, up to the largest size.

    A server may send without end, or send little that decompresses to much.

    Raises:
        RequestRejected: the body is longer.
        TransientError: nothing came for too long.
    """
    parts, size = response.aiter_bytes(), 0
    while True:
        try:
            async with asyncio.timeout(STALL):
                part = await anext(parts, None)
        except TimeoutError:
            raise TransientError(f"a reply that stops for {STALL:g} s in its middle") from None
        if part is None:
            return
        size += len(part)
        if size > MAX_REPLY:
            raise RequestRejected(f"a reply of more than {MAX_REPLY / 2**20:g} MiB")
        yield part


async def _events(response) -> AsyncIterator[dict]:
    """The JSON objects of server-sent events.

    Raises:
        ValueError, RecursionError: the data of an event is no JSON.
    """
    buffer = b""
    async for part in _bounded(response):
        *lines, buffer = (buffer + part).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data not in (b"", b"[DONE]"):
                yield _parse_json(data.decode(errors="replace"))


def _parse_json(text: str) -> Any:
    """The value of JSON. Numbers of very many digits, infinite ones and NaN become None.

    Raises:
        ValueError, RecursionError: the text is no JSON.
    """
    return json.loads(
        text,
        parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else None,
        parse_float=lambda digits: x if math.isfinite(x := float(digits)) else None,
        parse_constant=lambda _: None,
    )


def _read_key(key_env: str, base_url: str) -> str:
    """The API key; "" if none is set but a `base_url`, which may need none.

    Raises:
        RuntimeError: there is neither, or the key has characters that no key has.
    """
    key = os.environ.get(key_env, "").strip()
    if not key and not base_url:
        raise RuntimeError(
            f"llm.backend=openai: set ${key_env} to your key, or config.llm.base_url to an "
            "endpoint that needs none, or use --config.llm.backend=none"
        )
    if not re.fullmatch("[!-~]*", key):
        raise RuntimeError(
            f"llm.backend=openai: ${key_env} holds blanks or letters that no key has; set it again"
        )
    return key
