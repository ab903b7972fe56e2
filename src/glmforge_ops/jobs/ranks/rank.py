"""One rank: its command as a process group of its own, its log and its record.

A thread per rank reads what the command prints. On a full disk lines are dropped and counted; the rank goes on. The
record has the fields of `glmforge.observe.job_records.RankRecord`, which reads it.
"""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from glmforge_ops.jobs.ranks.assignment import Assignment, open_private, write_private

STEP_VARIABLE = "GLMFORGE_STEP_FILE"
"""The path of a file of the node into which the program writes the step that it has reached: eight bytes,
little-endian, at the beginning; a shell's `echo 12 >"$GLMFORGE_STEP_FILE"` is understood as well."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""As shells have it."""

MAX_LINE = 16 << 10
"""Bytes of a line that are kept."""

BAR_EVERY_S = 10.0
_LAST_OUTPUT_S = 2.0
_NUM_LAST_WORDS, _MAX_WORDS = 40, 1000
_COLOUR = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


class Rank:
    """A rank of this node. `start` never raises: a command that cannot be started has ended."""

    def __init__(self, directory: Path, ranks: Assignment, node: int, local: int) -> None:
        self.rank, self.local = node * ranks.ranks_per_node + local, local
        self._ranks, self._node = ranks, ranks.nodes[node]
        self._path = directory / f"rank-{self.rank:05d}.json"
        self._log = _Log(directory / f"rank-{self.rank:05d}.log")
        self._steps = StepFile(self.rank)
        self._words: deque[str] = deque(maxlen=_NUM_LAST_WORDS)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name=f"rank {self.rank}", daemon=True)
        self.began, self.ended = time.time(), 0.0
        self.status: int | None = None

    def start(self, environment: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                self._ranks.command,
                bufsize=0,
                cwd=self._ranks.cwd,
                env={**environment, STEP_VARIABLE: self._steps.path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Killed with this process: it would train beside the rank that takes its place.
                preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
        except (OSError, subprocess.SubprocessError) as error:
            name = getattr(error, "filename", None) or self._ranks.command[0]
            why = getattr(error, "strerror", None) or str(error)
            self._keep([f"[glmforge] {name}: cannot be started on {socket.gethostname()}: {why}"])
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            self._end(NOT_FOUND if missing else NOT_EXECUTABLE)

    def follow(self) -> None:
        """Read what it prints, from now on: no thread runs while the node's processes are forked."""
        if self.is_running:
            self._write_record()
            self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self.status is None

    def signal(self, number: int) -> None:
        """To the command's process group."""
        if self.is_running and self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def look(self) -> None:
        """Note the command's end. What it leaves in its group is killed, before its number can be another's."""
        process = self._process
        if not self.is_running or process is None:
            return
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.signal(signal.SIGKILL)
            self._end(process.wait())

    def _end(self, status: int) -> None:
        self.ended, self.status = time.time(), status
        if self._reader.ident is not None:
            self._reader.join(_LAST_OUTPUT_S)  # a process that left the group may keep the pipe open for ever
        self._log.close(self._head())
        self._write_record()
        self._steps.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        lines = Lines()
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            self._keep(lines.feed(data, time.monotonic()))
        self._keep(lines.end())

    def _keep(self, lines: list[str]) -> None:
        self._words.extend(line[:_MAX_WORDS] for line in lines if line.strip())
        if lines:
            self._log.write(self._head(), lines)

    def _head(self) -> str:
        step = self._steps.read()
        return f"{timestamp(time.time())} {self.rank} {'-' if step is None else step} "

    def _write_record(self) -> None:
        """Where there is no room, without the last lines."""
        content: dict[str, Any] = {
            "rank": self.rank,
            "local_rank": self.local,
            "node": self._node,
            "host": socket.gethostname(),
            "pid": 0 if self._process is None else self._process.pid,
            "began": timestamp(self.began),
            "ended": timestamp(self.ended) if self.ended else None,
            "status": self.status,
            "last_step": self._steps.read(),
        }
        for words in (list(self._words), []):
            with suppress(OSError):
                write_private(self._path, json.dumps(content | {"last_words": words}) + "\n")
                return


class StepFile:
    """A new file, in memory where there is /dev/shm. `read` gives the newest step; None before the first."""

    def __init__(self, rank: int) -> None:
        directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
        self.path = f"{directory}/glmforge-step-{os.getpid()}-{rank}-{os.urandom(4).hex()}"
        self._last: int | None = None
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def read(self) -> int | None:
        step = step_of(os.pread(self._file, 32, 0))
        self._last = self._last if step is None else step
        return self._last

    def close(self) -> None:
        os.close(self._file)
        with suppress(OSError):
            Path(self.path).unlink()


def step_of(content: bytes) -> int | None:
    """No step has more than seven bytes, and no text has a zero: the eighth byte tells numbers from text."""
    if len(content) == 8 and content[7] == 0:
        return int.from_bytes(content, "little")
    text = content.strip()
    return int(text) if text.isdigit() and len(text) < 18 else None


class _Log:
    """A rank's log: time, rank, step and text of each line."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._dropped, self._why = path, -1, 0, ""

    def write(self, head: str, lines: list[str]) -> None:
        """All lines or none, so that no line is half; after lines that were dropped with their number."""
        lost = [f"[glmforge] {self._dropped} lines were dropped: {self._why}"] if self._dropped else []
        data, size = "".join(f"{head}{line}\n" for line in [*lost, *lines]).encode(), None
        try:
            if self._file < 0:
                self._file = open_private(str(self._path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            size = os.fstat(self._file).st_size
            while data:
                data = data[os.write(self._file, data) :]
            self._dropped = 0
        except OSError as error:
            self._dropped, self._why = self._dropped + len(lines), error.strerror or type(error).__name__
            if size is not None:
                with suppress(OSError):
                    os.ftruncate(self._file, size)

    def close(self, head: str) -> None:
        if self._dropped:
            self.write(head, [])
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Lines:
    """Makes lines of what a command prints: whole, bounded, printable.

    A progress bar, which writes its line again and again behind carriage returns, gives its last state, and one every
    `BAR_EVERY_S`.
    """

    def __init__(self) -> None:
        self._part, self._cut = b"", 0
        self._is_bar = self._redraws = False
        self._shown: str | None = None
        self._shown_at = -BAR_EVERY_S

    def feed(self, data: bytes, now: float) -> list[str]:
        """Lines that end with `data`; `now` in seconds of any clock."""
        *whole, part = data.split(b"\n")
        lines: list[str] = []
        for piece in whole:
            self._add(piece)
            lines += self._end()
        self._add(part)
        if self._is_bar and now - self._shown_at >= BAR_EVERY_S:
            self._shown, self._shown_at = self._text(), now
            lines.append(self._shown)
        return lines

    def end(self) -> list[str]:
        """What has not ended with a line break."""
        return self._end() if self._part else []

    def _add(self, piece: bytes) -> None:
        if piece and self._redraws:
            self._part, self._cut, self._redraws = b"", 0, False
        text = self._part + piece
        _, bar, last = text.rstrip(b"\r").rpartition(b"\r")
        self._redraws = self._redraws or text.endswith(b"\r")
        self._is_bar = self._is_bar or self._redraws or bool(bar)
        self._cut = (0 if bar else self._cut) + max(0, len(last) - MAX_LINE)
        self._part = last[:MAX_LINE]

    def _end(self) -> list[str]:
        text, shown = self._text(), self._shown
        self._part, self._cut, self._shown = b"", 0, None
        self._is_bar = self._redraws = False
        return [] if text == shown else [text]

    def _text(self) -> str:
        return printable(self._part) + (f" ... ({self._cut} bytes more)" if self._cut else "")


def printable(line: bytes) -> str:
    """A line without what could steer a terminal; bytes that are not UTF-8 stand as their escapes."""
    text = _COLOUR.sub(b"", line).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)


def timestamp(now: float) -> str:
    """UTC with microseconds, as records and logs have it: 2026-01-31T23:59:59.123456Z."""
    microseconds = round(now * 1e6)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(microseconds // 1_000_000))
    return f"{seconds}.{microseconds % 1_000_000:06d}Z"
