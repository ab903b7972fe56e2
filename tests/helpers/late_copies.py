"""Background saves whose copy has not begun when training comes to wait for it: the latest that may happen.

with late_copies() as copies:
    saver.save(...)
    saver.finish_copy()  # the copy begins in here
    ...                  # tensors are changed
    copies.let_go()      # if it did not begin there it does now, and copies what has been changed
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from glmforge.checkpoint.policy import staging
from glmforge.checkpoint.policy.staging import StagedCopy

_TIMEOUT_S = 60.0


class LateCopies:
    """`num_waited_for` counts the copies that began because they were waited for."""

    def __init__(self) -> None:
        self.num_waited_for = 0
        self._begins: list[threading.Event] = []

    def let_go(self) -> None:
        """Let copies begin that nobody has waited for."""
        for begins in self._begins:
            begins.set()


@contextmanager
def late_copies() -> Iterator[LateCopies]:
    """Within, the copy of a background save begins when it is waited for, or at the latest by `let_go`."""
    copies = LateCopies()

    class Awaited(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            self.begins = threading.Event()
            copies._begins.append(self.begins)

        def wait(self, timeout: float | None = None) -> bool:
            copies.num_waited_for += not self.begins.is_set()
            self.begins.set()
            return super().wait(timeout)

    class LateCopy(StagedCopy):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._host_is_done = self._awaited = Awaited()

        def finish(self) -> dict[str, Tensor]:
            if threading.current_thread().name == "checkpoint":
                assert self._awaited.begins.wait(_TIMEOUT_S)
            return super().finish()

    with patch.object(staging, "StagedCopy", LateCopy):
        yield copies
