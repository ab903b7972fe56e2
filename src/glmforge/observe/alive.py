"""Slow work that is going on: a rank reports it, and hang detection takes it into account.

Between two steps a rank may evaluate, generate or write for longer than a hang is allowed to last, while the others
wait for it in a collective. What the watchdog of a rank has heard it therefore writes into one small file of the run
(`RunDirectory.alive`): watchdogs of waiting ranks read it before they give up, and the job's supervisor looks at its
time. One file for all ranks is enough, as it matters that some rank works, not which. Times are of the clock: nodes
whose clocks differ judge a hang that much earlier or later.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glmforge.files import open_regular

Alive = Callable[[str], None]
"""Called by slow work, again and again, with a few words for what it is doing."""

_BYTES = 200
"""Of a mark: always as many, so that one is written over another in a single piece."""


def quiet(what: str) -> None:
    """For slow work that is not watched."""


@dataclass(frozen=True)
class Mark:
    """Rank `rank` was at work on `what`, at `time` (seconds since 1970)."""

    time: float
    rank: int
    what: str

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.time)


def write_mark(path: Path, mark: Mark) -> None:
    """Replace the mark of all ranks. Raises `OSError`."""
    text = f"{mark.time:.3f} {mark.rank} {' '.join(mark.what.split())}".encode()[: _BYTES - 1]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        os.pwrite(file, text.ljust(_BYTES - 1) + b"\n", 0)
    finally:
        os.close(file)


def read_mark(path: Path) -> Mark | None:
    """The newest mark; None if missing or unreadable."""
    with suppress(OSError, ValueError):
        with open_regular(path) as file:
            said, rank, what = file.read(_BYTES).decode(errors="replace").split(" ", 2)
        return Mark(float(said), int(rank), what.rstrip())
    return None
