"""A tracker in a process of its own, so that it does not share the interpreter with training.

    Background(TrackingProcess(settings, root, name, config))

wandb takes 0.6 ms of the interpreter for a record, in which the thread that trains cannot go on
(`docs/lab-notes/observability.md`). The process reads lines of JSON from its input: first what `Tracking` is made of,
then calls of the sink. It ends when its input does, or with the process that started it, and says last, on its output,
what went wrong. Signals for the run are not for it: it has to hand over what the run's end recorded.

    python -m glmforge.observe.tracking_process        started by `TrackingProcess` only
"""

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from glmforge.config.observe import TrackingConfig
from glmforge.errors import GlmforgeError
from glmforge.extras import MissingPackageError
from glmforge.observe.bus import Kind
from glmforge.observe.metric_table import Metric, MetricKind, MetricTable
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import decode_line, encode_line
from glmforge.observe.tracking import Tracking, without_secrets

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_S = 5.0
"""How often it looks whether its parent lives: a process forked from that one may hold the pipe open for longer."""


class TrackingError(GlmforgeError):
    """What a tracker's process could not do."""


class TrackingProcess:
    """The sink `Tracking`, elsewhere; arguments are the same. Its calls wait while the pipe is full.

    Raises:
        MissingPackageError: the tracker is not installed.
    """

    def __init__(self, settings: TrackingConfig, root: Path, name: str, config: Mapping[str, Any]) -> None:
        self.name: str = settings.package
        if find_spec(settings.package) is None:
            raise MissingPackageError(f"observe.tracking.package: {settings.package}", settings.package)
        self._arguments = {
            "settings": settings.model_dump(mode="json"),
            "root": str(root),
            "name": name,
            "config": without_secrets(config),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._table, self._num_rows = MetricTable(), 0

    def open(self, step: int, tokens: int, table: MetricTable) -> None:
        self._table, self._num_rows = table, 0
        if self._process is None:
            self._process = _start()
            self._send(json.dumps(self._arguments).encode() + b"\n")
        self._declare()
        self._send(encode_line({"call": "open", "step": step, "tokens": tokens}))

    def write(self, kind: Kind, record: Record) -> None:
        if self._process is not None:
            self._declare()
            self._send(encode_line({"call": "write", "kind": kind, "record": record}))

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._end(process)

    def _declare(self) -> None:
        """Rows may be declared at any time."""
        if len(self._table) != self._num_rows:
            self._num_rows = len(self._table)
            self._send(encode_line({"call": "declare", "rows": [list(row) for row in self._table.values()]}))

    def _send(self, line: bytes) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            while line:
                line = line[process.stdin.write(line) :]
        except BrokenPipeError:
            self._process = None
            self._end(process)
            raise TrackingError("its process ended early") from None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for its end; raises what it says, or that it said nothing."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        with process.stdout as answers:
            said = answers.read().decode("utf-8", "replace").strip()
        if status := process.wait():
            raise TrackingError(said or f"its process ended with status {status}")


def _start() -> "subprocess.Popen[bytes]":
    """It inherits the signals of this thread as blocked, until it ignores them."""
    command = [sys.executable, "-P", "-m", "glmforge.observe.tracking_process", str(os.getpid())]
    pipe = subprocess.PIPE
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> int:
    """Make the sink and its calls, from lines of the standard input."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the tracker's own output goes to stderr
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        _serve(_lines(sys.stdin.fileno(), int(sys.argv[1])))
    except Exception as error:  # noqa: BLE001 - said to the parent, which drops the sink
        print(f"{type(error).__name__}: {error}", file=answers, flush=True)
        return 1
    return 0


def _serve(lines: Iterator[bytes]) -> None:
    first = next(lines, None)
    if first is None:
        return
    made = json.loads(first)
    settings = TrackingConfig.model_validate(made["settings"])
    sink = Tracking(settings, Path(made["root"]), made["name"], made["config"])
    table = MetricTable()
    try:
        for line in lines:
            call = decode_line(line)
            assert call is not None
            if call["call"] == "declare":
                table.declare(_row(*row) for row in call["rows"])
            elif call["call"] == "open":
                sink.open(call["step"], call["tokens"], table)
            else:
                sink.write(Kind(call["kind"]), call["record"])
    finally:
        sink.close()


def _row(name: str, unit: str, group: str, meaning: str, kind: str, labels: list[str]) -> Metric:
    return Metric(name, unit, group, meaning, MetricKind(kind), tuple(labels))


def _lines(file: int, parent: int) -> Iterator[bytes]:
    """Whole lines, until the end of the file or of the parent."""
    rest = b""
    while True:
        if not select.select([file], [], [], _LOOK_S)[0]:
            if os.getppid() != parent:
                return
            continue
        content = os.read(file, 1 << 16)
        if not content:
            return
        *lines, rest = (rest + content).split(b"\n")
        yield from lines


if __name__ == "__main__":
    raise SystemExit(main())
