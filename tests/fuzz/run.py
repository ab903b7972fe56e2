"""Runs many cases of a format in workers, and keeps what each of them came to."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.format import Format

TESTS = Path(__file__).resolve().parents[1]
GOOD = ("accepted", "refused")
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MALLOC_ARENA_MAX": "1",  # each arena takes 64 MiB of address space, which is what the limit counts
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class Failure:
    """A case that was neither accepted nor refused as it should be."""

    form: str
    case: str
    outcome: str
    detail: str

    def __str__(self) -> str:
        return f"{self.form} {self.case}: {self.outcome}: {self.detail}"


@dataclass
class Tally:
    """What came of the cases of one format."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, form: str, case: str, answer: dict[str, Any]) -> None:
        """Count the answer of a worker."""
        self.outcomes[answer["outcome"]] += 1
        self.cpu_s += answer["cpu_s"]
        self.slowest_s = max(self.slowest_s, answer["cpu_s"])
        if answer["outcome"] not in GOOD:
            self.failures.append(Failure(form, case, answer["outcome"], answer["detail"]))

    def merge(self, other: "Tally") -> "Tally":
        """Both together."""
        slowest = max(self.slowest_s, other.slowest_s)
        return Tally(self.outcomes + other.outcomes, self.failures + other.failures, slowest, self.cpu_s + other.cpu_s)


def format_modules() -> list[str]:
    """The modules of all formats of the suite."""
    found = (path.stem for path in sorted((TESTS / "fuzz").glob("test_*.py")))
    return [f"fuzz.{name}" for name in found if hasattr(importlib.import_module(f"fuzz.{name}"), "FORMAT")]


def load_format(module: str) -> Format:
    """The `FORMAT` of a module."""
    form: Format = importlib.import_module(module).FORMAT
    return form


def run_cases(
    module: str,
    cases: Sequence[str],
    *,
    seed: int,
    workers: int = 1,
    report: Callable[[], None] = lambda: None,
) -> Tally:
    """Read `cases` (numbers, names of bombs) of the format in `module`; `report` is called after each."""
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda n: _run_part(module, cases[n::workers], seed, report), range(workers))
        total = Tally()
        for part in parts:
            total = total.merge(part)
    return total


def _run_part(module: str, cases: Iterable[str], seed: int, report: Callable[[], None]) -> Tally:
    tally, worker = Tally(), None
    try:
        for case in cases:
            worker = worker or _Worker(module, seed)
            answer = worker.ask(case)
            if answer is None:
                answer, worker = worker.last_words(), None
            tally.add(module.removeprefix("fuzz.test_"), case, answer)
            report()
    finally:
        if worker is not None:
            worker.end()
    return tally


class _Worker:
    """A process that reads cases (see `fuzz.worker`)."""

    def __init__(self, module: str, seed: int) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="fuzz-")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", module, str(seed), self.scratch.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            cwd=self.scratch.name,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(TESTS), *_python_path()])},
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            self.process.wait()
            said = self._said()
            self.end()
            raise RuntimeError(f"{module}: the originals cannot be read:\n{said}")

    def ask(self, case: str) -> dict[str, Any] | None:
        """What came of a case; None if the process did not survive it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(case, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None  # type: ignore[no-any-return]

    def last_words(self) -> dict[str, Any]:
        """Why the process ended."""
        status = self.process.wait()
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        outcome = {"SIGALRM": "hang", "SIGXCPU": "endless"}.get(name, "died")
        said = self._said()
        self.end()
        return {"outcome": outcome, "detail": f"{name}: {said[-800:]}", "cpu_s": 0.0}

    def end(self) -> None:
        """End the process and remove what it wrote."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        self.scratch.cleanup()

    def _said(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")


def _python_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


class ProgressLines:
    """A line per so many cases on stderr."""

    def __init__(self, name: str, total: int, every: int = 2000) -> None:
        self.name, self.total, self.every, self.done = name, total, every, 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.done += 1
            if self.done % self.every == 0:
                print(f"{self.name}: {self.done:,} of {self.total:,} cases", file=sys.stderr)


def share(total: int, parts: int, part: int) -> int:
    """How many of `total` cases the format number `part` of `parts` gets: all shares together are `total`."""
    return total // parts + (part < total % parts)
