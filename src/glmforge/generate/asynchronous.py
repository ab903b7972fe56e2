"""An engine for many tasks of an event loop: each reads its own answer while the steps serve all of them.

Steps run one after another in a thread, so the loop stays free; requests come and go between two steps. There are steps
as long as anybody waits for tokens. Requests are encoded and their grammars compiled in other threads.
"""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from glmforge.generate.admission import QueueFullError, refuse_full
from glmforge.generate.answer import Update
from glmforge.generate.engine import Engine, Prepared
from glmforge.generate.grammar import MAX_OPEN
from glmforge.generate.params import GREEDY, SamplingParams
from glmforge.generate.prompts import Prompt


class AsyncEngine:
    """Streams of `engine`, which must not be stepped elsewhere meanwhile. For one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._between_steps = asyncio.Lock()
        self._readers: dict[int, asyncio.Queue[Update | Exception]] = {}
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
        if not wait:
            refuse_full(self.engine.scheduler, self.engine.config, num_preparing=self._num_preparing)
        self._num_preparing += 1
        try:
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._preparing, self.engine.prepare, prompt, params)
            number, reader = await self._queue(prepared, wait=wait)
        finally:
            self._num_preparing -= 1
        num_open = params.num_samples
        try:
            while num_open:
                update = await reader.get()
                if isinstance(update, Exception):
                    raise update
                num_open -= update.finished is not None
                yield update
        finally:
            del self._readers[number]
            if num_open:
                self._left.append(number)

    async def _queue(self, prepared: Prepared, *, wait: bool) -> "tuple[int, asyncio.Queue[Update | Exception]]":
        """The number of the request, and what its updates are read from."""
        async with self._turns if wait else nullcontext():
            while True:
                async with self._between_steps:
                    try:
                        number = self.engine.queue(prepared, has_place=not wait)
                    except QueueFullError:
                        if not wait:
                            raise
                    else:
                        reader = self._readers[number] = asyncio.Queue()
                        self._go_on()
                        return number, reader
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
                    self._readers[update.request].put_nowait(update)

    def _fail(self, error: Exception) -> None:
        for number, reader in self._readers.items():
            self.engine.cancel(number)
            reader.put_nowait(error)
