"""A rank's record in the attempt's directory, and the mark of the first failure: what the supervisor judges by.

The fields are those of `glmforge.observe.job_records.RankRecord`, which reads them.
"""

import contextlib
import json
import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmforge_ops.jobs.ranks.lines import timestamp

FIRST_FAILURE = "first-failure.json"
"""The rank that was seen first to end with a failure; from then on the others have their grace."""

NUM_LAST_WORDS = 40
_MAX_WORDS = 1000


@dataclass
class RecordOfRank:
    """What is known of a rank so far. Times in seconds since 1970."""

    path: Path
    rank: int
    local_rank: int
    node: str
    host: str
    began: float
    pid: int = 0
    ended: float | None = None
    status: int | None = None
    last_step: int | None = None
    dropped_lines: int = 0
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=NUM_LAST_WORDS))

    def say(self, lines: list[str]) -> None:
        """Remember the last lines; empty ones tell nothing."""
        self.last_words.extend(line[:_MAX_WORDS] for line in lines[-2 * NUM_LAST_WORDS :] if line.strip())

    def content(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "local_rank": self.local_rank,
            "node": self.node,
            "host": self.host,
            "pid": self.pid,
            "began": timestamp(self.began),
            "ended": None if self.ended is None else timestamp(self.ended),
            "status": self.status,
            "last_step": self.last_step,
            "dropped_lines": self.dropped_lines,
            "last_words": list(self.last_words),
        }


def write_record(path: Path, content: dict[str, Any]) -> bool:
    """A reader finds the old record or the new one, never half. Whether it could be written: a full disk ends no rank.

    If there is room neither for it nor for the old one, what the last lines were is given up.
    """
    for text in (json.dumps(content), json.dumps(content | {"last_words": []})):
        new = path.with_suffix(f".json.{os.getpid()}")
        try:
            with open(new, "w", encoding="utf-8", opener=_private) as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
        else:
            return True
    return False


def mark_failure(directory: Path, content: dict[str, Any]) -> None:
    """Unless another rank has failed before. Who sees a file that is empty sees that some rank has failed."""
    path, told = directory / FIRST_FAILURE, {key: content[key] for key in ("rank", "node", "ended", "status")}
    with contextlib.suppress(OSError), open(path, "x", encoding="utf-8", opener=_private) as file:
        json.dump(told, file)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
