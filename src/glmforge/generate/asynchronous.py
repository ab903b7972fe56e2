"""An engine for many tasks of an event loop: each reads its own answer while the steps serve all of them.

Steps run one after another in a thread, so the loop stays free; requests come and go between two steps. There are steps
as long as anybody waits for tokens. Requests are encoded and their grammars compiled in other threads.
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from glmforge.generate.admission import QueueFullError, refuse_full
from glmforge.generate.answer import Update
from glmforge.generate.engine import Engine, Prepared
from glmforge.generate.grammar import MAX_OPEN
from glmforge.generate.params import GREEDY, SamplingParams
from glmforge.generate.prompts import Prompt


class UnreadError(Exception):
    """The reader of an answer is too far behind the engine."""


class Answer:
    """What is read of requests that belong together, as a context: leaving it cancels those that have not ended.

    Args:
        priority: of the requests; lower ones go first.
        adapter: that they are answered with; see `Engine.prepare`.
        max_unread: so many updates may wait to be read, before the requests are cancelled with `UnreadError`.
    """

    def __init__(
        self,
        engine: "AsyncEngine",
        priority: int = 0,
        max_unread: int | None = None,
        *,
        adapter: str | None = None,
    ) -> None:
        self.priority, self.adapter = priority, adapter
        self._engine, self._max_unread = engine, max_unread
        self._updates: asyncio.Queue[Update | Exception] = asyncio.Queue()
        self._first_samples: dict[int, int] = {}
        self._num_open: dict[int, int] = {}

    async def ask(self, prompt: Prompt, params: SamplingParams, *, first_sample: int = 0, wait: bool = False) -> None:
        """Queue a request, whose samples are numbered from `first_sample` on; errors as `AsyncEngine.stream`."""
        number = await self._engine.queue(self, prompt, params, wait=wait)
        self._first_samples[number], self._num_open[number] = first_sample, params.num_samples

    async def read(self) -> Update | None:
        """The next update; None behind the last one. Raises what a step has raised, and `UnreadError`."""
        if not self._num_open:
            return None
        update = await self._updates.get()
        if isinstance(update, Exception):
            raise update
        if update.finished is not None:
            self._num_open[update.request] -= 1
            if not self._num_open[update.request]:
                self._engine.leave(update.request, is_open=False)
                del self._num_open[update.request]
        first = self._first_samples[update.request]
        return replace(update, sample=first + update.sample) if first else update

    def put(self, update: Update | Exception) -> None:
        """Have it read, or an error where too much is unread."""
        if isinstance(update, Update) and self._updates.qsize() == self._max_unread:
            self.leave()
            self._updates = asyncio.Queue()
            update = UnreadError(f"{self._max_unread:,} updates of an answer were not read")
        self._updates.put_nowait(update)

    def leave(self) -> None:
        """No more is read: what is left is cancelled before the next step."""
        for number in self._num_open:
            self._engine.leave(number, is_open=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()


class AsyncEngine:
    """Answers of `engine`, which must not be stepped elsewhere meanwhile. For one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._between_steps = asyncio.Lock()
        self._readers: dict[int, Answer] = {}
        self._left: list[int] = []
        self._num_preparing = 0
        self._turns = asyncio.Lock()
        """Of those that wait for room; the first one tries again when there has been a step."""
        self._stepped = asyncio.Event()
        self._preparing = ThreadPoolExecutor(MAX_OPEN, "prepare")
        self._thread = ThreadPoolExecutor(1, "engine")  # always the same one: torch has a pool of workers for each
        self._steps: asyncio.Task[None] | None = None

    async def stream(
        self, prompt: Prompt, params: SamplingParams = GREEDY, *, wait: bool = False
    ) -> AsyncGenerator[Update, None]:
        """What each step gives to this request, up to its end. Who stops reading cancels it.

        A request that fails later than when it is added ends with updates that say so: `finished` is "error".

        Args:
            wait: where the engine's queue is full, wait for room in the order of arrival. For loops that have all
                their prompts; a server had better refuse.

        Raises:
            RequestError: it can never be served.
            QueueFullError: the queue is full; before the first update, if at all.
        """
        async with Answer(self) as answer:
            await answer.ask(prompt, params, wait=wait)
            while (update := await answer.read()) is not None:
                yield update

    async def queue(self, answer: Answer, prompt: Prompt, params: SamplingParams, *, wait: bool) -> int:
        """Queue a request whose updates `answer` is given; its number."""
        if not wait:
            refuse_full(self.engine.scheduler, self.engine.config, num_preparing=self._num_preparing)
        self._num_preparing += 1
        try:
            loop = asyncio.get_running_loop()
            prepare = partial(self.engine.prepare, prompt, params, adapter=answer.adapter)
            prepared = await loop.run_in_executor(self._preparing, prepare)
            return await self._queue(answer, prepared, wait=wait)
        finally:
            self._num_preparing -= 1

    def leave(self, number: int, *, is_open: bool) -> None:
        """Nobody reads of this request any more; it is cancelled before the next step if it has not ended."""
        if self._readers.pop(number, None) is not None and is_open:
            self._left.append(number)

    async def pause(self) -> None:
        """Let no step run and no request be queued until `resume`."""
        await self._between_steps.acquire()

    def resume(self) -> None:
        self._between_steps.release()

    async def _queue(self, answer: Answer, prepared: Prepared, *, wait: bool) -> int:
        """Queue it as soon as no step runs and there is room."""
        async with self._turns if wait else nullcontext():
            while True:
                async with self._between_steps:
                    try:
                        number = self.engine.queue(prepared, has_place=not wait, priority=answer.priority)
                    except QueueFullError:
                        if not wait:
                            raise
                    else:
                        self._readers[number] = answer
                        self._go_on()
                        return number
                self._go_on()
                self._stepped.clear()
                await self._stepped.wait()

    def _go_on(self) -> None:
        """Step, unless it does."""
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Step while there is something to do."""
        loop = asyncio.get_running_loop()
        while self._left or not self.engine.is_idle:
            async with self._between_steps:
                while self._left:
                    self.engine.cancel(self._left.pop())
                try:
                    updates = await loop.run_in_executor(self._thread, self.engine.step)
                except Exception as error:  # noqa: BLE001 - passed on to the waiting callers
                    self._fail(error)
                    return
                finally:
                    self._stepped.set()
            for update in updates:
                if update.request in self._readers:
                    self._readers[update.request].put(update)

    def _fail(self, error: Exception) -> None:
        for number in (*self._left, *self._readers):
            self.engine.cancel(number)
        self._left.clear()
        for answer in set(self._readers.values()):
            answer.put(error)
