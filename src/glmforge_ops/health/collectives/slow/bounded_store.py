"""The job's store for a rank that may itself be the one that is cut off.

torch's client of a store waits without limit for some answers (`add`, `check`) when the machine that keeps it is gone,
for as long as TCP goes on trying: a quarter of an hour. Here every question is asked by a thread of its own, and
whoever gets no answer within the limit is told so.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from glmforge.errors import HostError


class BoundedStore:
    """The operations of a store that the search needs. Each raises `HostError` after `limit_s`, and once that has
    happened at once; and when the store has ended."""

    def __init__(self, store: dist.Store, limit_s: float) -> None:
        self._store, self._limit_s = store, limit_s
        self._questions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lost = False
        threading.Thread(target=self._ask, name="store", daemon=True).start()

    def set(self, key: str, value: str) -> None:
        self._answer(lambda: self._store.set(key, value))

    def get(self, key: str) -> str:
        """Waits for the key."""
        return str(self._answer(lambda: self._store.get(key).decode()))

    def add(self, key: str, amount: int) -> int:
        return int(self._answer(lambda: self._store.add(key, amount)))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._answer(lambda: self._store.check(list(keys))))

    def _ask(self) -> None:
        while True:
            self._questions.get()()

    def _answer(self, question: Callable[[], Any]) -> Any:
        answers: queue.SimpleQueue[tuple[Any, RuntimeError | None]] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put((question(), None))
            except RuntimeError as error:  # torch's: the store has ended, or a key did not come
                answers.put((None, error))

        if self._lost:
            raise self._unreachable()
        self._questions.put(ask)
        try:
            answer, error = answers.get(timeout=self._limit_s)
        except queue.Empty:
            self._lost = True
            raise self._unreachable() from None
        if error is not None:
            raise self._unreachable() from error
        return answer

    def _unreachable(self) -> HostError:
        return HostError(
            "rank 0, which leads the search, has ended or cannot be reached from this host any more: see its output, "
            "and this host's network"
        )
