"""Talks with an OpenAI-compatible endpoint, many at once: what to do when calls fail, are refused, or cost too much."""

import asyncio
import collections
import time
from collections.abc import Sequence

from ark_jax.log import Progress
from ark_jax.text.cost import cost_of
from ark_jax.text.endpoint import Endpoint
from ark_jax.text.failures import Hopeless, Rejected, Unavailable

FEW = 4  # failures in a row, or as many as there are requests at once, that speak of the endpoint and not of the requests


class Live:
    """One run of `calls` through the endpoint of `talks.settings`."""

    def __init__(self, talks, calls: Sequence, label: str):
        self.talks, self.calls, self.label, self.settings = talks, calls, label, talks.settings
        self.waiting = collections.deque(calls)
        self.failed: dict[str, str] = {}  # by item: why
        self.rejected: dict[str, tuple] = {}  # by item: call, turns, why
        self.answered = self.failed_in_a_row = self.under_way = 0
        self.paid_before = talks.replies.spent
        self.enough = max(self.settings.concurrency, FEW)
        self.stop = ""  # why nothing more is to be asked
        longest = max((sum(map(len, call.turns)) for call in calls), default=0)
        self.dearest = cost_of({"usage": {"prompt_tokens": longest / 4, "completion_tokens": self.settings.max_tokens}},
                               talks.price)  # USD that a request can cost

    async def run(self) -> None:
        """Asks until every call is done.

        Raises:
            RuntimeError: what failed for good or why it stopped, and how to go on.
        """
        s = self.settings
        async with Endpoint(model=s.model, base_url=s.base_url, key_env=s.key_env, temperature=s.temperature,
                            max_tokens=s.max_tokens, timeout=s.timeout, retries=s.retries,
                            requests_per_minute=s.requests_per_minute, tokens_per_minute=s.tokens_per_minute) as endpoint:
            with Progress(self.label, len(self.calls), "calls") as bar:
                workers = [asyncio.create_task(self._work(endpoint, bar)) for _ in range(min(s.concurrency, len(self.calls)))]
                try:
                    done, others = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                    for worker in done:
                        worker.result()
                except Hopeless as error:
                    self.stop, endpoint.closing = str(error), True
                    while endpoint.sent:  # each within its timeout; what comes is paid for
                        await asyncio.wait(others, timeout=0.1)
                finally:
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
            self.talks.usage.retries += endpoint.retries_made
        if self._known_to_answer:
            for call, turns, why in self.rejected.values():
                self.talks.hear(call, turns, {"error": why})
        else:  # it may be the settings, so nothing is kept about the single requests
            self.failed |= {item: why for item, (_, _, why) in self.rejected.items()}
        if self.failed:
            item, why = next(iter(self.failed.items()))
            self.stop = (f"{len(self.failed)} of {len(self.calls)} calls failed, the first being {item}: {why}"
                         f"{f'; {self.stop}' if self.stop else ''}")
        if self.stop:
            raise RuntimeError(f"{self.stop}. The other replies are kept; run the same command again for the rest")

    @property
    def _known_to_answer(self) -> bool:
        return bool(self.answered or self.talks.usage.cached)

    async def _work(self, endpoint: Endpoint, bar: Progress) -> None:
        talks = self.talks
        while self.waiting and not self.stop:
            call = self.waiting.popleft()
            given_up = lambda item: self.stop or item in self.failed or item in self.rejected
            while not given_up(call.item) and (turns := talks.next(call)):
                key = self.settings.key(turns, call.draw)
                with talks.replies.claim(key) as ours:
                    if ours:
                        await self._ask(call, turns, endpoint)
                    elif key not in talks.replies.rows:  # another is at it
                        self.waiting.append(call)
                        await asyncio.sleep(0.1)
                        break
            else:
                bar.add(note=", ".join([*([f"${talks.usage.cost:.2f}"] if talks.price else []),
                                        *([f"{len(self.failed)} failed"] if self.failed else [])]))

    async def _ask(self, call, turns: tuple[str, ...], endpoint: Endpoint) -> None:
        while self._unsure() and not self.stop:
            await asyncio.sleep(0.05)
        if self.stop or self._spent():
            return
        self.under_way += 1
        start = time.monotonic()
        try:
            reply = await endpoint.ask([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)])
        except Rejected as error:
            self.rejected[call.item] = call, turns, str(error)
            if len(self.rejected) >= self.enough and not self._known_to_answer:
                self.stop = "the endpoint rejects every request"
            return
        except Unavailable as error:
            if endpoint.closing:
                return
            self.failed[call.item] = str(error)
            self.failed_in_a_row += 1
            if self.failed_in_a_row >= self.enough:
                self.stop = "the endpoint has answered none of the last requests; see to it"
            return
        finally:
            self.under_way -= 1
            self.talks.waste(call, endpoint.unused)
        self.failed_in_a_row, self.answered = 0, self.answered + 1
        self.talks.hear(call, turns, reply, time.monotonic() - start)

    def _unsure(self) -> bool:
        """Whether one more request might go beyond the limit of cost, as long as no reply has told what one costs."""
        most, dearest = self.settings.max_cost, self.under_way * self.dearest
        return bool(most and self.under_way and not self.answered and self.talks.replies.spent + dearest >= most)

    def _spent(self) -> bool:
        """Whether the limit of cost is reached, or will be when what is under way costs what the others did."""
        most, paid = self.settings.max_cost, self.talks.replies.spent
        each = (paid - self.paid_before) / max(self.answered, 1)
        if not most or paid + self.under_way * each < most:
            return False
        self.stop = f"${paid:.2f} of llm.max_cost={most} are spent, and what is under way takes the rest; raise it"
        return True
