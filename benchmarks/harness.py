"""What the benchmarks share: arguments, processes that take turns, ratios, tables. `record.py` writes results.

Variants take turns, each in a process of its own, a few steps at a time. Whatever else the machine does then falls on
all alike, and ratios of neighbouring turns are compared, not times taken at different moments.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from record import RESULTS, ROOT

SHARED_DATA = ROOT.parent / "shared" / "data"


def arguments(doc: str | None, *, rounds: int | None = None, threads: bool = False) -> argparse.ArgumentParser:
    """A parser described by the first line of `doc`, with `--out`, and `--rounds` and `--threads` where asked for."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="file of the result (default: in benchmarks/results)")
    if rounds is not None:
        parser.add_argument(
            "--rounds", type=int, default=rounds, help=f"timed turns of each variant (default {rounds})"
        )
    if threads:
        parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser


def data_arguments(doc: str | None, needed: Iterable[str], *, rounds: int | None = None) -> argparse.Namespace:
    """Arguments with `--data` and `--quick`, for a benchmark on real text; exits if a file of `needed` is absent."""
    parser = arguments(doc, rounds=rounds)
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory of the real data")
    parser.add_argument("--quick", action="store_true", help="a trial that writes no result")
    given = parser.parse_args()
    for path in (given.data / name for name in needed):
        if not path.is_file():
            parser.error(f"{path}: no such file; name the directory of the real data with --data")
    return given


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Records of a file of JSON lines, compressed with zstd or not."""
    import orjson
    import zstandard

    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    return [orjson.loads(line) for line in data.splitlines() if line]


def alternating(items: Sequence[Any], rounds: int) -> Iterator[Any]:
    """All items in each round, the order reversed every time."""
    for number in range(rounds):
        yield from items if number % 2 == 0 else reversed(items)


def cpu_seconds(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of this process in each call, the functions taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for name in alternating(list(functions), rounds):
        start = time.process_time()
        functions[name]()
        seconds[name].append(time.process_time() - start)
    return seconds


class Program:
    """A program in a process of its own that answers lines of JSON."""

    def __init__(self, name: str, command: Sequence[str], threads: int, **environment: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **environment},
        )

    def read(self) -> dict[str, Any]:
        """Its next line. Raises `RuntimeError` if it has exited."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.name!r} exited; its error is above")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return self.read()

    def close(self) -> None:
        self.process.communicate()


class Worker(Program):
    """One variant of a step: the benchmark starts itself once more for each, and calls `serve` there.

    Attributes:
        turns: seconds of each step, turn by turn; the first turn is the warm-up.
        losses: of all steps.
    """

    def __init__(self, name: str, script: Sequence[str], threads: int, **environment: str) -> None:
        super().__init__(name, [sys.executable, *script], threads, **environment)
        self.turns: list[list[float]] = []
        self.losses: list[float] = []

    def run(self, steps: int) -> None:
        answer = self.ask({"steps": steps})
        self.turns.append(answer["seconds"])
        self.losses += answer["losses"]

    @property
    def seconds(self) -> list[float]:
        """Every timed step."""
        return [second for turn in self.turns[1:] for second in turn]


def take_turns(steps: Mapping[Worker, int], rounds: int) -> None:
    """In each round each worker takes its number of steps."""
    for worker in alternating(list(steps), rounds):
        worker.run(steps[worker])


def step_figures(worker: Worker, tokens: int, num_losses: int) -> dict[str, Any]:
    """Median and fastest step, tokens per second, and the first losses."""
    median = statistics.median(worker.seconds)
    return {
        "median_s": round(median, 4),
        "min_s": round(min(worker.seconds), 4),
        "tokens_per_s": round(tokens / median),
        "first_losses": [round(loss, 6) for loss in worker.losses[:num_losses]],
    }


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
    """A worker's loop: run steps and answer with their times and losses, or with what `memory` returns."""
    for line in sys.stdin:
        question = json.loads(line)
        if "steps" not in question:
            assert memory is not None, "this benchmark does not measure memory"
            print(json.dumps(memory()), flush=True)
            continue
        seconds, losses = [], []
        for _ in range(question["steps"]):
            start = clock()
            losses.append(step())
            seconds.append(clock() - start)
        print(json.dumps({"seconds": seconds, "losses": losses}), flush=True)


def result(name: str) -> dict[str, Any]:
    """The content of a result; empty before anything was measured."""
    file = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    lines = (header, ["---"] * len(header), *rows)
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
