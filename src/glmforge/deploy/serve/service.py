"""Requests of any API on one engine: limits, deadlines, ends by id, and counts.

An answer that runs is `Running`; who reads it gets updates up to its end, or an `ApiError`. Leaving it cancels what has
not ended, so that a client that vanishes costs no further step. Where a request's time is over, where it is aborted and
where the server has waited for it long enough at its own end, the next update is what says so.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.serve.access import Later
from glmforge.deploy.serve.metrics import ServerMetrics
from glmforge.deploy.serve.thoughts import Thoughts
from glmforge.generate.admission import QueueFullError
from glmforge.generate.answer import Update
from glmforge.generate.asynchronous import Answer, AsyncEngine, UnreadError
from glmforge.generate.engine import Engine
from glmforge.generate.lead import RankLostError
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.protocol.request import ApiError, Ask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a request may ask for.

    Attributes:
        body_bytes: of a request's body.
        prompt_tokens: of a prompt; None: as many as the model has positions.
        samples: answers of one request, to all its prompts together.
        seconds: for a request from its arrival to its end; None for no limit.
        read_seconds: for reading a body, and for a client to take what is sent.
        unread_updates: of an answer, that wait for a slow reader.
    """

    body_bytes: int = 16 << 20
    prompt_tokens: int | None = None
    samples: int = 256
    seconds: float | None = 600.0
    read_seconds: float = 30.0
    unread_updates: int = 16_384


@dataclass(frozen=True)
class ServedModel:
    """What APIs have to know of the server; see `protocol.request.Context`."""

    tokenizer: Tokenizer
    model_names: tuple[str, ...]
    max_positions: int
    default_max_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))


class Service:
    """Asks of any API, answered by one engine.

    Attributes:
        is_draining: whether new requests are refused.
    """

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine, self.limits, self.metrics = AsyncEngine(engine), limits, ServerMetrics()
        self.is_draining = False
        self._running: set[Running] = set()
        self._has_none = asyncio.Event()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @asynccontextmanager
    async def run(self, ask: Ask, caller: str, request_id: str | None) -> "AsyncIterator[Running]":
        """Queue a request and have its answer. Raises `ApiError`."""
        if self.is_draining:
            raise Later("overloaded", "the server is shutting down; try again later", 5.0)
        self._refuse(ask)
        running = Running(self, ask, caller, ask.id or request_id)
        self._running.add(running)
        try:
            async with running.answer:
                await running.begin()
                yield running
        finally:
            self._running.discard(running)
            running.count_end()
            if not self._running:
                self._has_none.set()

    def abort(self, request_id: str, caller: str) -> int:
        """End the caller's requests of this id; how many there were."""
        mine = [one for one in self._running if one.id == request_id and one.caller == caller]
        for running in mine:
            running.end("cancelled")
        return len(mine)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait for those that run; after so many seconds they end with an error."""
        self.is_draining = True
        for patience in (seconds, 5.0):
            self._has_none.clear()
            if not self._running:
                return
            try:
                await asyncio.wait_for(self._has_none.wait(), patience)
            except TimeoutError:
                for running in self._running:
                    running.end("shutdown")

    def _refuse(self, ask: Ask) -> None:
        longest, prompts, number = self.limits.prompt_tokens, ask.prompts or (ask.prompt,), ask.params.num_samples
        if longest is not None and max(map(len, prompts)) > longest:
            raise ApiError(400, "invalid_request", f"prompt: more than {longest:,} tokens; shorten it", "prompt")
        if len(prompts) * number > self.limits.samples:
            raise ApiError(
                400,
                "invalid_request",
                f"n: {len(prompts) * number:,} answers are more than {self.limits.samples:,}",
                "n",
            )


class Running:
    """An answer of the service.

    Attributes:
        caller, id: who asked, and what it calls its request.
    """

    def __init__(self, service: Service, ask: Ask, caller: str, request_id: str | None) -> None:
        self.caller, self.id = caller, request_id
        adapter = ask.model if ask.model in service.engine.engine.runner.adapters else None
        self.answer = Answer(service.engine, ask.priority, service.limits.unread_updates, adapter=adapter)
        self._service, self._ask = service, ask
        self._prompts: Sequence[Sequence[int]] = ask.prompts or (ask.prompt,)
        self._thoughts = None
        if ask.reasoning_budget is not None:
            assert service.engine.engine.tokenizer is not None, "what is asked has been encoded"
            self._thoughts = Thoughts(ask, service.engine.engine.tokenizer)
        self._arrived = self._told = time.perf_counter()
        self._open = set(range(len(self._prompts) * ask.params.num_samples))
        self._has_begun = False
        self._end: str | None = None
        limits = [seconds for seconds in (ask.timeout, service.limits.seconds) if seconds is not None]
        self._deadline = asyncio.get_running_loop().time() + min(limits) if limits else None
        self._waiting: asyncio.Timeout | None = None

    async def begin(self) -> None:
        """Queue it."""
        params = self._ask.params
        if self._ask.max_tokens_zero:
            params = replace(params, max_new_tokens=0)
        if self._thoughts is not None:
            for sample in range(params.num_samples):
                await self._queue(self._ask.prompt, self._thoughts.first_params(sample), sample)
            return
        for place, prompt in enumerate(self._prompts):
            await self._queue(prompt, params, place * params.num_samples)

    async def _queue(
        self, prompt: Sequence[int], params: SamplingParams, first_sample: int, *, wait: bool = False
    ) -> None:
        try:
            async with self._in_time():
                await self.answer.ask(prompt, params, first_sample=first_sample, wait=wait)
        except TimeoutError:
            raise self._ended() from None
        except QueueFullError as error:
            raise Later("rate_limit", str(error)) from None
        except RequestError as error:
            raise ApiError(400, "invalid_request", str(error), str(error).partition(":")[0]) from None

    async def updates(self) -> AsyncIterator[Update]:
        """Up to the end. Raises `ApiError`."""
        while True:
            try:
                async with self._in_time():
                    update = await self.answer.read()
            except TimeoutError:
                if self._end != "cancelled":
                    raise self._ended() from None
                for sample in sorted(self._open):
                    yield self._count(Update(0, sample, None, "cancelled"))
                return
            except UnreadError as error:
                raise ApiError(504, "timeout", f"{error}; the answer was cancelled") from None
            except RankLostError:
                raise Later(
                    "overloaded", "the server has lost one of its ranks and ends; try again later", 5.0
                ) from None
            except Exception as error:
                code = secrets.token_hex(4)
                logger.exception("a step has failed (%s)", code, exc_info=error)
                raise ApiError(500, "server", f"the engine has failed (see the server's log, {code})") from None
            if update is None:
                return
            if update.finished == "error":
                raise ApiError(400, "invalid_request", update.error or "the request has failed")
            told, following = ([update], None) if self._thoughts is None else self._thoughts.take(update)
            if following is not None:
                await self._queue(*following, update.sample, wait=True)
            for one in told:
                yield self._count(one)

    def end(self, why: str) -> None:
        """Let the reader know at once: "cancelled" for what was aborted, "shutdown" where the server ends."""
        self._end, self._deadline = why, 0.0
        if self._waiting is not None:
            self._waiting.reschedule(0.0)

    def count_end(self) -> None:
        """It is not read any more."""
        if self._open and self._has_begun:
            self._service.metrics.ended["left"] += len(self._open)
        self._service.metrics.whole.add(time.perf_counter() - self._arrived)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        async with asyncio.timeout_at(self._deadline) as self._waiting:
            try:
                yield
            finally:
                self._waiting = None

    def _ended(self) -> ApiError:
        if self._end == "shutdown":
            return Later("overloaded", "the server is shutting down; try again later", 5.0)
        if self._end == "cancelled":
            return ApiError(400, "invalid_request", "the request was aborted")
        return ApiError(504, "timeout", "the request has taken longer than it may; shorten it, or raise its timeout")

    def _count(self, update: Update) -> Update:
        metrics, now = self._service.metrics, time.perf_counter()
        if not self._has_begun:
            self._has_begun = True
            metrics.num_prompt += sum(map(len, self._prompts))
            metrics.num_cached += update.num_cached
            metrics.first.add(now - self._arrived)
        elif update.token is not None:
            metrics.between.add(now - self._told)
        metrics.num_new += update.token is not None
        self._told = now
        if update.finished is not None:
            self._open.discard(update.sample)
            metrics.ended[update.finished] += 1
        return update
