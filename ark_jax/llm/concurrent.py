"""Sends the calls of a stage to an endpoint, many at once, and decides when to stop."""

import asyncio
import collections
import time
from collections.abc import Callable, Sequence

from ark_jax.llm.conversations import Call, Conversations
from ark_jax.llm.endpoint import Endpoint
from ark_jax.llm.errors import EndpointUnusable, RequestRejected, RetriesExhausted
from ark_jax.llm.pricing import reply_cost
from ark_jax.runtime.log import Progress

# After so many failures in a row the endpoint is at fault, not the requests. With more concurrency
# it is more.
MIN_FAILURES = 4


class RequestPool:
    """Sends `calls` with `settings.concurrency` workers. Used once.

    Args:
        conversations: the replies to each call so far.
        label: names the progress lines.
        partial: see `Endpoint`.
    """

    def __init__(
        self,
        conversations: Conversations,
        calls: Sequence[Call],
        label: str,
        partial: Callable[[str], None] | None = None,
    ):
        self.conversations, self.calls, self.label = conversations, calls, label
        self.partial = partial
        self.settings, self.cache = conversations.settings, conversations.cache
        self.waiting = collections.deque(range(len(calls)))  # numbers of calls
        self.failed: dict[str, str] = {}  # item -> reason
        self.rejected: dict[
            str, tuple[Call, tuple[str, ...], str]
        ] = {}  # item -> call, turns, reason
        self.answered = self.failed_in_a_row = self.in_flight = 0
        self.spent_before = self.cache.spent
        self.max_failures = max(self.settings.concurrency, MIN_FAILURES)
        self.stop_reason = ""  # once set, nothing more is sent
        self.max_request_cost = self._max_request_cost()

    def _max_request_cost(self) -> float:
        """USD of the longest prompt with a reply of `max_tokens`, at four letters per token."""
        longest = max((sum(map(len, call.turns)) for call in self.calls), default=0)
        usage = {"prompt_tokens": longest / 4, "completion_tokens": self.settings.max_tokens}
        return reply_cost({"usage": usage}, self.conversations.price)

    async def run(self) -> None:
        """Sends requests until every call is done.

        Raises:
            RuntimeError: calls failed, or the run stopped early. The message says how to go on.
        """
        async with self._open_endpoint() as endpoint:
            with Progress(self.label, len(self.calls), "calls") as bar:
                await self._run_workers(endpoint, bar)
            self.conversations.usage.retries += endpoint.retries_made
        self._record_rejections()
        self._raise_if_failed()

    def _open_endpoint(self) -> Endpoint:
        """The client, with the settings of the run."""
        s = self.settings
        return Endpoint(
            model=s.model,
            base_url=s.base_url,
            key_env=s.key_env,
            temperature=s.temperature,
            top_p=s.top_p,
            max_tokens=s.max_tokens,
            timeout=s.timeout,
            retries=s.retries,
            requests_per_minute=s.requests_per_minute,
            tokens_per_minute=s.tokens_per_minute,
            partial=self.partial,
        )

    async def _run_workers(self, endpoint: Endpoint, bar: Progress) -> None:
        """Runs workers until the queue is empty; stops them if the endpoint is unusable."""
        count = min(self.settings.concurrency, len(self.calls))
        workers = [asyncio.create_task(self._process_queue(endpoint, bar)) for _ in range(count)]
        try:
            done, pending = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
        except EndpointUnusable as error:
            self.stop_reason, endpoint.closing = str(error), True
            while endpoint.in_flight:  # await replies, which are paid for
                await asyncio.wait(pending, timeout=0.1)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _record_rejections(self) -> None:
        """Caches the rejections, or counts them as failures if no request was ever answered.

        In that case the settings may be wrong, not the requests.
        """
        for item, (call, turns, reason) in self.rejected.items():
            if self._has_answered:
                self.conversations.record(call, turns, {"error": reason})
            else:
                self.failed[item] = reason

    def _raise_if_failed(self) -> None:
        """Raises RuntimeError if a call failed, or the run stopped early."""
        if self.failed:
            item, reason = next(iter(self.failed.items()))
            self.stop_reason = (
                f"{len(self.failed)} of {len(self.calls)} calls failed, "
                f"the first being {item}: {reason}"
                f"{f'; {self.stop_reason}' if self.stop_reason else ''}"
            )
        if self.stop_reason:
            raise RuntimeError(
                f"{self.stop_reason}. The other replies are kept; "
                "run the same command again for the rest"
            )

    @property
    def _has_answered(self) -> bool:
        """Whether the endpoint has answered a request of this or an earlier run."""
        return bool(self.answered or self.conversations.usage.cached)

    async def _process_queue(self, endpoint: Endpoint, bar: Progress) -> None:
        """Takes calls from the queue, one after the other."""
        while self.waiting and not self.stop_reason:
            number = self.waiting.popleft()
            if await self._finish_call(self.calls[number], endpoint):
                bar.add(note=self._progress_note())
            else:
                self.waiting.append(number)
                await asyncio.sleep(0.1)

    async def _finish_call(self, call: Call, endpoint: Endpoint) -> bool:
        """Sends the requests of a call until it is done or given up.

        Returns:
            False if another worker or process is making its next request: try again later.
        """
        while not self._is_given_up(call) and (turns := self.conversations.next_turns(call)):
            key = self.settings.key(turns, call.draw)
            with self.cache.claim(key) as is_claimed:
                if is_claimed:
                    await self._send(call, turns, endpoint)
                elif key not in self.cache.rows:
                    return False
        return True

    def _is_given_up(self, call: Call) -> bool:
        """Whether no further request of a call is sent."""
        return bool(self.stop_reason or call.item in self.failed or call.item in self.rejected)

    def _progress_note(self) -> str:
        """Cost and failures so far, for the progress line."""
        notes = []
        if self.conversations.price:
            notes.append(f"${self.conversations.usage.cost:.2f}")
        if self.failed:
            notes.append(f"{len(self.failed)} failed")
        return ", ".join(notes)

    async def _send(self, call: Call, turns: tuple[str, ...], endpoint: Endpoint) -> None:
        """Sends one request, once the cost limit allows it, and records its reply or failure."""
        while self._may_exceed_cost() and not self.stop_reason:
            await asyncio.sleep(0.05)
        if self.stop_reason or self._is_cost_reached():
            return
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
        self.in_flight += 1
        start = time.monotonic()
        try:
            reply = await endpoint.ask(messages)
        except RequestRejected as error:
            self.rejected[call.item] = call, turns, str(error)
            if len(self.rejected) >= self.max_failures and not self._has_answered:
                self.stop_reason = "the endpoint rejects every request"
            return
        except RetriesExhausted as error:
            if not endpoint.closing:
                self._count_failure(call, str(error))
            return
        finally:
            self.in_flight -= 1
            self.conversations.record_unused(call, endpoint.unused)
        self.failed_in_a_row, self.answered = 0, self.answered + 1
        self.conversations.record(call, turns, reply, time.monotonic() - start)

    def _count_failure(self, call: Call, reason: str) -> None:
        """Keeps the reason of a failed call; after too many in a row, stops the run."""
        self.failed[call.item] = reason
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= self.max_failures:
            self.stop_reason = "the endpoint has answered none of the last requests; check it"

    def _may_exceed_cost(self) -> bool:
        """Whether requests in flight may reach the cost limit, before any reply shows a cost."""
        limit = self.settings.max_cost
        if not limit or not self.in_flight or self.answered:
            return False
        return self.cache.spent + self.in_flight * self.max_request_cost >= limit

    def _is_cost_reached(self) -> bool:
        """Whether the cost limit is reached, which stops the run.

        Requests in flight count at the mean cost so far.
        """
        limit, spent = self.settings.max_cost, self.cache.spent
        mean_cost = (spent - self.spent_before) / max(self.answered, 1)
        if not limit or spent + self.in_flight * mean_cost < limit:
            return False
        spending = f"${spent:.2f} of llm.max_cost={limit} are spent"
        self.stop_reason = f"{spending}, and the requests under way take the rest; raise it"
        return True
