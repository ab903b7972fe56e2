"""An engine for many tasks of an event loop: each reads its own answer while the steps serve all of them.

Steps run one after another in a thread, so the loop stays free; requests come and go between two steps. There are steps
as long as anybody waits for tokens. Requests are encoded and their grammars compiled in other threads.
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
    """A request that has been queued, as a context: `read` it; leaving it cancels what has not ended.

    Attributes:
        number: the engine's.
    """

    def __init__(self, engine: "AsyncEngine", number: int, num_samples: int, max_unread: int | None) -> None:
        self.number, self._engine, self._num_open = number, engine, num_samples
        self._max_unread, self._is_left = max_unread, False
        self._updates: asyncio.Queue[Update | Exception] = asyncio.Queue()

    async def read(self) -> Update | None:
        """The next update; None behind the last one. Raises what a step has raised, and `UnreadError`."""
        if not self._num_open:
            return None
        update = await self._updates.get()
        if isinstance(update, Exception):
            raise update
        self._num_open -= update.finished is not None
        return update

    def put(self, update: Update | Exception) -> None:
        """Have it read, or an error where too much is unread; the request is cancelled then."""
        if isinstance(update, Update) and self._updates.qsize() == self._max_unread:
            self.leave()
            self._updates = asyncio.Queue()
            update = UnreadError(f"{self._max_unread:,} updates of an answer were not read")
        self._updates.put_nowait(update)

    def leave(self) -> None:
        """No more is read: the request is cancelled before the next step."""
        if not self._is_left:
            self._is_left = True
            self._engine.left(self, is_open=self._num_open > 0)

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
        async with await self.ask(prompt, params, wait=wait) as answer:
            while (update := await answer.read()) is not None:
                yield update

    async def ask(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        wait: bool = False,
        priority: int = 0,
        max_unread: int | None = None,
    ) -> Answer:
        """Queue a request; enter what is returned at once. `wait` and errors as for `stream`.

        Args:
            priority: lower ones go first.
            max_unread: so many updates may wait to be read, before the request is cancelled with `UnreadError`.
        """
        if not wait:
            refuse_full(self.engine.scheduler, self.engine.config, num_preparing=self._num_preparing)
        self._num_preparing += 1
        try:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._preparing, self.engine.prepare, prompt, params)
            return await self._queue(prepared, max_unread, wait=wait, priority=priority)
        finally:
            self._num_preparing -= 1

    def left(self, answer: Answer, *, is_open: bool) -> None:
        """An answer is not read any more; its request goes before the next step, if it has not ended."""
        del self._readers[answer.number]
        if is_open:
            self._left.append(answer.number)

    async def _queue(self, prepared: Prepared, max_unread: int | None, *, wait: bool, priority: int) -> Answer:
        """Queue it as soon as no step runs and there is room."""
        async with self._turns if wait else nullcontext():
            while True:
                async with self._between_steps:
                    try:
                        number = self.engine.queue(prepared, has_place=not wait, priority=priority)
                    except QueueFullError:
                        if not wait:
                            raise
                    else:
                        answer = Answer(self, number, prepared.params.num_samples, max_unread)
                        self._readers[number] = answer
                        self._go_on()
                        return answer
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
        for answer in self._readers.values():
            answer.put(error)
