"""Variants of a step that take turns: each in a process of its own, a few steps at a time.

Whatever else the machine does then falls on all alike, and what is compared is the ratio of neighbouring turns, not
times taken at different moments. A benchmark starts itself once for each variant, as `Worker`, and calls `serve` there.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Worker:
    """One variant in a process of its own that runs steps when told to.

    Attributes:
        turns: seconds of each step, turn by turn; the first turn is the warm-up.
        losses: of all steps.
    """

    def __init__(self, name: str, arguments: list[str], threads: int, **environment: str) -> None:
        self.name = name
        self.turns: list[list[float]] = []
        self.losses: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **environment},
        )

    def run(self, steps: int) -> None:
        answer = self.ask({"steps": steps})
        self.turns.append(answer["seconds"])
        self.losses += answer["losses"]

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer of the process. Raises `RuntimeError` if it has died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.name!r} died; its error stands above")
        found: dict[str, Any] = json.loads(answer)
        return found

    @property
    def seconds(self) -> list[float]:
        """Every timed step."""
        return [second for turn in self.turns[1:] for second in turn]

    def close(self) -> None:
        self.process.communicate()


def take_turns(steps: Mapping[Worker, int], rounds: int) -> None:
    """So many rounds in which each worker takes its number of steps, the order turned round every time."""
    for number in range(rounds):
        for worker in steps if number % 2 == 0 else reversed(steps):
            worker.run(steps[worker])


def paired_ratio(theirs: Worker, ours: Worker) -> dict[str, Any]:
    """Their time over ours, turn by turn."""
    pairs = zip(theirs.turns[1:], ours.turns[1:], strict=True)
    ratios = sorted(statistics.median(a) / statistics.median(b) for a, b in pairs)
    return {
        "of": ours.name,
        "over": theirs.name,
        "median": round(statistics.median(ratios), 3),
        "min": round(ratios[0], 3),
        "max": round(ratios[-1], 3),
        "of_fastest_steps": round(min(theirs.seconds) / min(ours.seconds), 3),
    }


def serve(
    step: Callable[[], float],
    memory: Callable[[], dict[str, int]] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """A worker's life: run steps and answer with their times and losses, or say what `memory` they take."""
    for line in sys.stdin:
        question = json.loads(line)
        if "steps" not in question:
            assert memory is not None, "a benchmark asks for what it has"
            print(json.dumps(memory()), flush=True)
            continue
        seconds, losses = [], []
        for _ in range(question["steps"]):
            start = clock()
            losses.append(step())
            seconds.append(clock() - start)
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)
