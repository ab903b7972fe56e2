"""Whether two answers are the same mathematics, judged by math-verify in processes that can be killed.

Symbolic simplification may run forever, and math-verify's own time limit is a signal that works in the main thread
only. So each pair is judged in a process of a pool: one that takes too long is killed and replaced, and its pair counts
as not equal. The processes are commands of their own, not forks: the caller may have threads and a GPU.
"""

import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for
from glmforge.verify.answers import after_reasoning, final_answer

TIMEOUT_S = 5.0
_START_S = 60.0
_SPACE = re.compile(r"(?<=[\u4e00-\u9fff])(?=[\d$\\-])|(?<=\d)(?=[\u4e00-\u9fff])")
"""Between Chinese and numbers, where math-verify needs a space to see them."""
_MAX_CHARACTERS = 20_000
"""A longer answer is no final answer, and only costs time."""


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, what was read as the answer, and whether judging it took too long."""

    is_right: bool
    extracted: str | None
    timed_out: bool = False


class _Worker:
    """A process that judges one pair after another: JSON lines in, JSON lines out."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "glmforge.verify.mathematics"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.judge("1", "1", _START_S) is None:  # it loads the package: that time is not an answer's
            self.kill()
            raise GlmforgeError("mathematics: the process that judges answers did not start; see the messages above")

    def judge(self, gold: str, answer: str, timeout_s: float) -> bool | None:
        """None if it takes too long, or the process ends."""
        given, said = self.process.stdin, self.process.stdout
        assert given is not None
        assert said is not None
        try:
            given.write(json.dumps([gold, answer]).encode() + b"\n")
            given.flush()
        except OSError:
            return None
        ready, _, _ = select.select([said], [], [], timeout_s)
        line = said.readline() if ready else b""
        return json.loads(line) if line else None

    def kill(self) -> None:
        with suppress(OSError), self.process:  # its streams are closed: what it did not read is an error
            self.process.kill()


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

    def __exit__(self, *_: object) -> None:
        while self._free:
            self._free.pop().kill()

    def judge(self, reply: str, gold: str) -> Verdict:
        """Whether the final answer of `reply` equals `gold`, LaTeX or plain, with or without a box.

        The answer is what `\\boxed{}` holds, or else the last expression that math-verify finds.
        """
        extracted, pair = pair_of(reply, gold)
        if pair is None:
            return Verdict(is_right=False, extracted=extracted)
        with self._places:
            worker = self._free.pop() if self._free else _Worker()
            found = worker.judge(*pair, self._timeout_s)
            if found is None:
                worker.kill()
            else:
                self._free.append(worker)
        return Verdict(bool(found), extracted, timed_out=found is None)


@lru_cache(maxsize=1)
def shared_judge() -> MathJudge:
    """One for the whole process: the functions of a task have no place for it."""
    return MathJudge(num_processes=os.cpu_count() or 1)


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


def pair_of(reply: str, gold: str) -> tuple[str | None, tuple[str, str] | None]:
    """What was extracted from a reply, and what `is_same` compares: `gold` and the answer; None where there is none."""
    extracted = final_answer(reply)
    answer = _boxed(extracted) if extracted is not None else _SPACE.sub(" ", after_reasoning(reply))
    if not answer.strip() or len(answer) > _MAX_CHARACTERS:
        return extracted, None
    return extracted, (gold if "\\boxed" in gold else _boxed(gold), answer)


def is_same(gold: str, answer: str) -> bool:
    """Whether two texts say the same mathematics, in this process and without a limit of time."""
    from math_verify import parse, verify

    try:  # without a time limit of its own: that is a signal, and the pool has one
        gold_parsed, answer_parsed = (parse(text, parsing_timeout=None) for text in (gold, answer))
        return bool(verify(gold_parsed, answer_parsed, timeout_seconds=None))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - what cannot be read is not the same
        return False


if __name__ == "__main__":
    logging.disable()
    with suppress(KeyboardInterrupt, BrokenPipeError):
        for line in sys.stdin:
            print(json.dumps(is_same(*json.loads(line))), flush=True)
