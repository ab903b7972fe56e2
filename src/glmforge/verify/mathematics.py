"""Whether two answers are the same mathematics, judged by math-verify in processes that can be killed.

Symbolic simplification may run for ever, and its own time limit is a signal that works in one thread only. So each
pair is judged in a process of its pool: one that is not done in time is killed and replaced, and the pair counts as not
shown to be equal. Time is counted from the start of the judgement, not from when it was asked for.
"""

import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import IO, Self

from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for
from glmforge.verify.answers import after_reasoning, final_answer

TIMEOUT_S = 5.0
_START_S = 60.0
_SPACE = re.compile(r"(?<=[\u4e00-\u9fff])(?=[\d$\\-])|(?<=\d)(?=[\u4e00-\u9fff])")
"""Between Chinese and numbers, where math-verify needs one to see them."""
_MAX_CHARACTERS = 20_000
"""Of an answer: what is longer is no final answer, and only costs time."""


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, what was read as the answer, and whether the time was up before it was known."""

    is_right: bool
    extracted: str | None
    timed_out: bool = False


class _Worker:
    """A process that judges one pair after another: JSON lines in, JSON lines out."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "glmforge.verify.mathematics"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._answer(_START_S) is None:  # the package is loaded: that time is not an answer's
            self.kill()
            raise GlmforgeError("mathematics: the process that judges answers did not start; see the messages above")

    def judge(self, gold: str, answer: str, timeout_s: float) -> bool | None:
        """None if it takes too long, or ends the process."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([gold, answer]).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            return None
        return self._answer(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()

    def _answer(self, timeout_s: float) -> bool | None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if ready else b""
        return json.loads(line) if line else None


class MathJudge:
    """Judges answers on up to `num_processes` processes, which start when they are needed; a context manager.

    It may be called from several threads.
    """

    def __init__(self, num_processes: int = 1, timeout_s: float = TIMEOUT_S) -> None:
        with needed_for("mathematics"):
            import math_verify  # noqa: F401
        self._timeout_s = timeout_s
        self._free: list[_Worker] = []
        self._places = threading.BoundedSemaphore(num_processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def judge(self, reply: str, gold: str) -> Verdict:
        """Whether the final answer of `reply` equals `gold`, LaTeX or plain, with or without a box.

        What is read as the answer is what `\\boxed{}` holds, or else the last expression that math-verify finds.
        """
        extracted = final_answer(reply)
        answer = f"\\boxed{{{extracted}}}" if extracted is not None else _SPACE.sub(" ", after_reasoning(reply))
        if not answer.strip() or len(answer) > _MAX_CHARACTERS:
            return Verdict(is_right=False, extracted=extracted)
        with self._worker() as worker:
            found = worker.judge(_boxed(gold), answer, self._timeout_s)
            if found is None:
                worker.kill()
        return Verdict(bool(found), extracted, timed_out=found is None)

    def close(self) -> None:
        """End the processes."""
        while self._free:
            self._free.pop().kill()

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._places:
            worker = self._free.pop() if self._free else _Worker()
            try:
                yield worker
            finally:
                if worker.process.poll() is None:
                    self._free.append(worker)


@lru_cache(maxsize=1)
def shared_judge() -> MathJudge:
    """One for the whole process, as tasks of benchmarks need it, whose functions have no place for it."""
    return MathJudge(num_processes=os.cpu_count() or 1)


def _boxed(gold: str) -> str:
    return gold if "\\boxed" in gold else f"\\boxed{{{gold}}}"


def _serve(given: IO[bytes], said: IO[bytes]) -> None:
    """Judge the pairs that come, a line each, until no more do."""
    from math_verify import parse, verify

    def say(value: bool) -> None:
        said.write(json.dumps(value).encode() + b"\n")
        said.flush()

    say(True)
    for line in given:
        gold, answer = json.loads(line)
        try:
            # No limit of its own: that is a signal, and the pool has one.
            parsed = (parse(text, parsing_timeout=None) for text in (gold, answer))
            say(bool(verify(*parsed, timeout_seconds=None)))
        except Exception:  # noqa: BLE001 - what cannot be read is not the same
            say(False)


if __name__ == "__main__":
    logging.disable()
    with suppress(KeyboardInterrupt, BrokenPipeError):
        _serve(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
