"""One OpenAI-compatible endpoint: requests that wait their turn, are repeated while there is hope, and never tell the key.

The official client does the speaking. Its own retries are off, for they know of one request only: here a 429 holds
back all of them, and limits per minute are kept rather than run into.
"""

import asyncio
import functools
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Mapping

from ark_jax.text import failures
from ark_jax.text.failures import Failure, Hopeless, Rejected, Unavailable

MINUTE = 60.0  # seconds in which the limits hold
BACKOFF, LONGEST = 1.0, 60.0  # seconds: the first wait is up to the one, doubling, no later one beyond the other
CONNECT = 10.0  # seconds that a connection may take
# Of a request answered with nothing, or sent to an address that refuses and has never answered. Both rarely pass, and
# every empty reply is paid for.
FEW_RETRIES = 2


class Bucket:
    """Room for so much in any minute, 0 being no limit: a twentieth of it at once, the rest evenly over the minute."""

    def __init__(self, per_minute: float):
        self.burst = per_minute / 20
        self.rate = (per_minute - self.burst) / MINUTE
        self.level, self.at = self.burst, time.monotonic()

    def wait(self, amount: float) -> float:
        """Seconds until `amount` may be taken. More than a burst may be, once the bucket is full, and leaves a debt."""
        if not self.rate:
            return 0.0
        now = time.monotonic()
        self.level, self.at = min(self.burst, self.level + (now - self.at) * self.rate), now
        return max(0.0, min(amount, self.burst) - self.level) / self.rate

    def take(self, amount: float) -> None:
        self.level -= amount


class Endpoint:
    """Answers chats, within the endpoint's limits. An async context manager, to be used in one event loop.

    Args:
        base_url: "" is the client's own address.
        key_env: the environment variable that holds the key.
        max_tokens: of a reply.
        timeout: seconds that a reply may take as a whole.
        retries: of a request, after failures that may pass. A 429 does not count while others are answered.
        requests_per_minute: and `tokens_per_minute`, 0 being no limit. Tokens of a request are estimated from the
            replies so far before it is sent, and set right by its own reply.

    Raises:
        RuntimeError: the client is not installed, or there is no key.
    """

    def __init__(self, *, model: str, base_url: str, key_env: str, temperature: float, max_tokens: int, timeout: float,
                 retries: int, requests_per_minute: int, tokens_per_minute: int):
        try:
            import openai
        except ImportError:
            raise RuntimeError("llm.backend=openai needs the client: pip install 'ark-jax[llm]'") from None
        self._key = os.environ.get(key_env, "").strip()
        if not self._key and not base_url:
            raise RuntimeError(f"llm.backend=openai: set ${key_env} to your key, or config.llm.base_url to an "
                               "endpoint that needs none, or use --config.llm.backend=none")
        if not re.fullmatch("[!-~]*", self._key):
            raise RuntimeError(f"llm.backend=openai: ${key_env} holds blanks or letters that no key has; set it anew")
        self._hidden = functools.partial(failures.hidden, key=self._key)
        self.retries_made = 0
        self.sent = 0  # requests whose replies are awaited
        self.closing = False  # whether nothing more may be sent
        self.unused: list[dict] = []  # completions that came to nothing, and are paid for all the same
        self._openai, self._timeout, self._retries = openai, timeout, retries
        self._client = openai.AsyncOpenAI(api_key=self._key or "none", base_url=base_url or None, max_retries=0,
                                          timeout=openai.Timeout(None, connect=min(timeout, CONNECT)))
        self._parameters = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
        self._refused: set[str] = set()  # parameters that the model does not take
        self._turn = asyncio.Lock()
        self._requests, self._tokens = Bucket(requests_per_minute), Bucket(tokens_per_minute)
        self._paused_until = 0.0
        self._heard = False  # anything at all from the address
        self._answered = 0  # requests
        # Until replies tell: a token takes four bytes, which suits both English and Chinese, and a reply is short.
        self._tokens_per_byte, self._tokens_out, self._counted = 0.25, max_tokens / 4, 0

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_) -> None:
        await self._client.close()

    async def ask(self, messages: list[dict]) -> dict:
        """An OpenAI chat completion with a text in choices[0].message.content, as a dict without nulls.

        A text that the limit of tokens cut off is one, with `finish_reason` "length".

        Raises:
            Rejected, Unavailable, Hopeless
        """
        failed, counted = 0, Counter()
        while True:
            before = self._answered
            try:
                return await self._try(messages)
            except Failure as failure:
                last = failure
            failed += 1
            counted[last.ends_as] += not (last.busy and self._answered > before)
            if counted[last.ends_as] > (self._retries if last.ends_as is Unavailable else min(FEW_RETRIES, self._retries)):
                raise last.ends_as(f"{last} ({failed} times)" if failed > 1 else str(last))
            self.retries_made += 1
            # Full jitter, on top of what the server asks for: those it sent away together do not come back together.
            wait = last.wait + random.random() * min(LONGEST, BACKOFF * 2 ** (failed - 1))
            if last.busy:
                self._paused_until = max(self._paused_until, time.monotonic() + (last.wait or wait))
            await asyncio.sleep(wait)

    async def _try(self, messages: list[dict]) -> dict:
        """One request, or as many as it takes to leave out what the model does not take."""
        while True:
            sent = {**self._parameters, "messages": messages}
            size = len(json.dumps(messages, ensure_ascii=False).encode(errors="replace"))
            if "max_tokens" in self._refused:
                sent["max_completion_tokens"] = sent.pop("max_tokens")
            if "temperature" in self._refused:
                del sent["temperature"]
            estimate = await self._wait(size)
            status, headers, body = await self._send(sent)
            self._heard = True
            if status == 200:
                reply = self._parsed(body)
                self._count(reply, size, estimate)
                if problem := failures.unusable(reply, self._hidden):
                    self.unused.append(reply)
                    raise problem
                self._answered += 1
                return reply
            said = self._hidden(failures.message_of(body))
            refused = {name for name in ("max_tokens", "temperature") if name in sent and name in said}
            if status != 400 or not refused or not re.search("not support|unsupported", said, re.I):
                raise failures.judged(status, headers, said)
            self._refused |= refused
            self.retries_made += 1

    async def _wait(self, size: int) -> float:
        """Waits for the end of a pause and for room within the limits, in the order of arrival; the tokens reckoned with."""
        async with self._turn:
            while True:
                if self.closing:
                    raise Unavailable("not sent: no request can succeed any more")
                tokens = size * self._tokens_per_byte + min(self._parameters["max_tokens"], self._tokens_out)
                wait = max(self._paused_until - time.monotonic(), self._requests.wait(1), self._tokens.wait(tokens))
                if wait <= 0:
                    break
                await asyncio.sleep(min(wait, MINUTE / 60))  # replies that come meanwhile may shorten it
            self._requests.take(1)
            self._tokens.take(tokens)
            return tokens

    async def _send(self, parameters: dict) -> tuple[int, Mapping[str, str], str]:
        """Status, headers and body of what came back."""
        self.sent += 1
        try:
            async with asyncio.timeout(self._timeout):
                # Not chat.completions.create: it takes a third more time, and what it makes of a cut body and of a
                # wrong address is hard to tell apart.
                return 200, {}, await self._client.post("/chat/completions", cast_to=str, body=parameters)
        except self._openai.APIStatusError as error:
            return error.status_code, error.response.headers, error.response.text
        except self._openai.APIConnectionError as error:
            cause = error.__cause__
            reason = self._hidden(f"{type(cause).__name__}: {cause}")
            if not self._heard and type(cause).__name__ in ("ConnectError", "ConnectTimeout", "UnsupportedProtocol"):
                reason = f"nothing answers at {self._address()}, see config.llm.base_url: {reason}"
                raise Failure(reason, ends_as=Hopeless) from None
            raise Failure(reason) from None
        except TimeoutError:
            raise Failure(f"no reply within {self._timeout:g} s, see config.llm.timeout") from None
        except UnicodeEncodeError:
            raise Rejected("the prompt is no Unicode text: it holds half of a surrogate pair") from None
        finally:
            self.sent -= 1

    def _parsed(self, body: str) -> dict:
        """The completion in a body of status 200, as far as its form goes."""
        try:
            reply = failures.without_nulls(json.loads(body))
        except ValueError:
            reply = None
            if body.lstrip()[:1] in ("{", ""):
                raise Failure("a reply cut off in the middle") from None
        match reply:
            case {"choices": []}:
                return reply
            case {"choices": [{"message": dict(message)}, *_]} if isinstance(message.get("content", ""), str):
                return reply
            case {"error": {"code": int(status), **rest}} if 400 <= status < 600:  # as OpenRouter passes on a provider's
                raise failures.judged(status, {}, self._hidden(str(rest.get("message", rest))))
        problem = f"no chat completion but {self._hidden(body)!r}"
        raise Failure(problem) if self._answered else Hopeless(f"{self._address()}, see config.llm.base_url, gives {problem}")

    def _address(self) -> str:
        return self._hidden(str(self._client.base_url))

    def _count(self, reply: dict, size: int, estimate: float) -> None:
        """Sets right the tokens taken, and what the next are estimated by."""
        match reply:
            case {"usage": {"prompt_tokens": int(read), "total_tokens": int(total)}}:
                self._tokens.take(total - estimate)
                self._counted += 1
                weight = max(0.1, 1 / self._counted)
                # All but the prompt: some count their thoughts in the total only.
                self._tokens_out += weight * (total - read - self._tokens_out)
                self._tokens_per_byte += weight * (read / size - self._tokens_per_byte)
