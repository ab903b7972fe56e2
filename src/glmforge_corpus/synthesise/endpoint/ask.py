"""Many requests at a time, each paid once, under a cap on their cost.

What the journal has is not requested again. Requests are recorded there before and after, so that a run killed at
any moment pays again for nothing but what was in flight.

Before an attempt goes out, the most that it can cost is set aside: a token per byte of the prompt (a byte-level
tokenizer never makes more), some for the chat template, and all tokens that the reply may have. The real cost takes
its place when the reply is there. So replies in flight can never take the sum over the cap.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field, model_validator

from glmforge.config.model import Strict, refuse
from glmforge.endpoint import Attempt, Endpoint, ask_again, url_fault
from glmforge.errors import DataError
from glmforge_corpus.synthesise.endpoint.inputs import Request
from glmforge_corpus.synthesise.endpoint.journal import Journal

TEMPLATE_TOKENS = 256
"""Set aside for what a chat template may add to the prompt of a request."""

_PER = 1e6


class Prices(Strict):
    """Money per million tokens."""

    prompt: float = Field(default=0.0, ge=0, description="per million prompt tokens")
    completion: float = Field(default=0.0, ge=0, description="per million completion tokens, reasoning included")

    def most(self, prompt_bytes: int, max_tokens: int) -> float:
        """The most that a request can cost."""
        return ((prompt_bytes + TEMPLATE_TOKENS) * self.prompt + max_tokens * self.completion) / _PER

    def cost(self, usage: Mapping[str, Any] | None, most: float) -> float:
        """Of a reply with this `usage`; without one it counts as the most it could have been."""
        counts = [(usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")]
        if not all(isinstance(count, int) and count >= 0 for count in counts):
            return most
        prompt, completion = counts
        assert isinstance(prompt, int)
        assert isinstance(completion, int)
        return (prompt * self.prompt + completion * self.completion) / _PER


class Budget:
    """Money that is spent, and money set aside for what is in flight.

    Args:
        cap: infinite for none.
        spent: by earlier runs.
    """

    def __init__(self, cap: float, spent: float = 0.0) -> None:
        self.cap, self.spent, self.reserved = cap, spent, 0.0
        self._in_flight = 0
        self._changed = asyncio.Condition()

    async def reserve(self, most: float) -> bool:
        """Set money aside, waiting for replies in flight if need be. False: the cap does not allow it."""
        async with self._changed:
            while self.spent + self.reserved + most > self.cap:
                if self._in_flight == 0:
                    return False
                await self._changed.wait()
            self.reserved += most
            self._in_flight += 1
            return True

    async def settle(self, most: float, cost: float) -> None:
        """Put what an attempt has cost in the place of what was set aside for it."""
        async with self._changed:
            self._in_flight -= 1
            self.reserved = self.reserved - most if self._in_flight else 0.0
            self.spent += cost
            self._changed.notify_all()


class Server(Strict):
    """The server, and how requests to it are repeated."""

    endpoint: str = Field(description="URL up to /chat/completions, such as http://localhost:8000/v1")
    api_key_env: str = Field(default="OPENAI_API_KEY", description="environment variable that holds the API key")
    concurrency: int = Field(default=32, ge=1, description="concurrent requests")
    timeout: float = Field(default=600.0, gt=0, description="seconds to wait for a complete reply")
    attempts: int = Field(default=6, ge=1, description="attempts per request before it is left for the next run")
    first_wait: float = Field(default=1.0, gt=0, description="seconds before the second attempt; doubled each time")
    prices: Prices = Prices()
    max_cost: float | None = Field(
        default=None, ge=0, description="upper bound on the cost of all runs into this directory"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (fault := url_fault(self.endpoint)) is not None:
            refuse("endpoint", fault)
        if self.max_cost is not None and not (self.prices.prompt or self.prices.completion):
            refuse("max_cost", "a cost cap needs prices; pass those of prompt and completion tokens")
        return self


@dataclass
class Tally:
    """What became of the requests of this run.

    Attributes:
        total, reused: requests, and those that the journal had already.
        asked: finished in this run.
        failed: message -> requests that no attempt could finish.
        attempts: outcome -> attempts.
        capped: whether the cap ended it.
    """

    total: int = 0
    reused: int = 0
    asked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    capped: bool = False

    @property
    def complete(self) -> bool:
        return self.reused + self.asked == self.total


OnProgress = Callable[[Tally, float], None]
"""Called with the tally and the money spent as requests finish."""


def ask_all(requests: Iterable[Request], server: Server, journal: Journal, progress: OnProgress | None = None) -> Tally:
    """Ask for all that the journal does not have; `journal.entry` has the replies then.

    Raises:
        DataError: the server takes no request of glmforge. Replies in flight are waited for and kept.
    """
    return asyncio.run(
        _ask_all(list({request.key: request for request in requests}.values()), server, journal, progress)
    )


async def _ask_all(requests: list[Request], server: Server, journal: Journal, progress: OnProgress | None) -> Tally:
    pending = [request for request in requests if request.key not in journal.finished]
    tally = Tally(len(requests), len(requests) - len(pending))
    budget = Budget(float("inf") if server.max_cost is None else server.max_cost, journal.spent)
    queue = iter(pending)
    url, key = server.endpoint.rstrip("/") + "/chat/completions", os.environ.get(server.api_key_env, "")
    async with Endpoint(url, key, server.timeout, server.concurrency, _check_completion) as endpoint:
        workers = _Workers(server, journal, budget, endpoint, tally, progress)
        tasks = [asyncio.create_task(workers.work(queue)) for _ in range(min(server.concurrency, len(pending)))]
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return tally


def _check_completion(reply: Any) -> None:
    if not isinstance(reply["choices"][0]["message"], dict):
        raise TypeError("message")


class _Stopped(Exception):
    """No further request is sent in this run."""


@dataclass
class _Workers:
    server: Server
    journal: Journal
    budget: Budget
    endpoint: Endpoint
    tally: Tally
    progress: OnProgress | None
    stopped: bool = False

    async def work(self, queue: Iterator[Request]) -> None:
        for request in queue:
            if self.stopped:
                return
            try:
                await self.finish(request)
            except BaseException:
                self.stopped = True
                raise
            if self.progress is not None:
                self.progress(self.tally, self.budget.spent)

    async def finish(self, request: Request) -> None:
        """Attempt until it is done, refused, or the last attempt has failed."""
        server = self.server
        try:
            attempt = await ask_again(lambda: self.attempt(request), server.attempts, server.first_wait, request.key)
        except _Stopped:
            return
        if attempt.outcome in ("done", "refused"):
            self.tally.asked += 1
        elif not self.stopped:
            message = f"{attempt.status or ''} {attempt.message}".strip()
            self.tally.failed[message] = self.tally.failed.get(message, 0) + 1

    async def attempt(self, request: Request) -> Attempt:
        """One attempt, journaled and counted. Raises `_Stopped` if the run ends or the cap forbids it."""
        if self.stopped:
            raise _Stopped
        prices = self.server.prices
        most = prices.most(request.prompt_bytes, int(request.payload["max_tokens"]))
        if not await self.budget.reserve(most):
            self.tally.capped = self.stopped = True
            raise _Stopped
        self.journal.append({"type": "sent", "key": request.key, "cost": most})
        attempt = Attempt("lost")
        cost = most
        try:
            attempt = await self.endpoint.ask(request.payload)
            if attempt.outcome == "done":
                assert attempt.reply is not None
                cost = prices.cost(attempt.reply.get("usage"), most)
            elif attempt.outcome != "lost":
                cost = 0.0
        except DataError:  # the server refuses everything: nothing was paid for it
            attempt, cost = Attempt("unpaid"), 0.0
            raise
        finally:
            self.journal.append(_entry(request.key, attempt, cost))
            await self.budget.settle(most, cost)
        self.tally.attempts[attempt.outcome] = self.tally.attempts.get(attempt.outcome, 0) + 1
        return attempt


def _entry(key: str, attempt: Attempt, cost: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": attempt.outcome, "key": key}
    match attempt.outcome:
        case "done":
            reply = attempt.reply or {}
            return entry | {"reply": {"choices": reply["choices"][:1], "usage": reply.get("usage")}, "cost": cost}
        case "refused":
            return entry | {"status": attempt.status, "message": attempt.message}
        case "lost":
            return entry | {"cost": cost}
        case _:
            return entry
