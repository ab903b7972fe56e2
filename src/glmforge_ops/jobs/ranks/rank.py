"""One rank: its command as a process group of its own, its two streams, its log and its record."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.guard import Guard, signal_groups
from glmforge_ops.jobs.ranks.lines import LineReader, timestamp
from glmforge_ops.jobs.ranks.record import RecordOfRank, mark_failure, write_record
from glmforge_ops.jobs.ranks.seats import Seat
from glmforge_ops.jobs.ranks.steps import StepFile
from glmforge_ops.jobs.ranks.writer import RankLog, Writer

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""As shells have it."""

FindStep = Callable[[str], int | None]


class Rank:
    """A rank of this node. `start` never raises: a command that cannot be started has ended."""

    def __init__(
        self, directory: Path, assignment: Assignment, seat: Seat, writer: Writer, find_step: FindStep | None
    ) -> None:
        name = f"rank-{seat.rank:05d}"
        self.seat, self._directory, self._assignment, self._writer = seat, directory, assignment, writer
        self._find_step = find_step
        self._log = RankLog(directory / f"{name}.log", seat.rank, assignment.log_bytes, writer)
        self._record = RecordOfRank(
            directory / f"{name}.json",
            seat.rank,
            seat.local_rank,
            assignment.nodes[seat.node],
            socket.gethostname(),
            began=time.time(),
        )
        self.steps = StepFile(seat.rank)
        self._found_step: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.streams: dict[IO[bytes], LineReader] = {}

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._record.ended is None

    @property
    def status(self) -> int | None:
        """Negative: the signal that ended it. None while it runs."""
        return self._record.status

    @property
    def ended_at(self) -> float:
        """In seconds since 1970; once it has ended."""
        assert self._record.ended is not None
        return self._record.ended

    def start(self, environment: Mapping[str, str], guard: Guard) -> None:
        try:
            process = self._process = subprocess.Popen(
                self._assignment.command,
                cwd=self._assignment.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=lambda: guard.add(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._refused(error)
            return
        self._record.pid = process.pid
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self.streams[stream] = LineReader()

    def write_record(self) -> None:
        content = self._record.content()
        self._writer.do(lambda: write_record(self._record.path, content))

    def read(self, stream: IO[bytes]) -> bool:
        """Keep what has come on one of the `streams`; False once it has ended."""
        try:
            data = os.read(stream.fileno(), 1 << 18)
        except BlockingIOError:
            return True
        if not data:
            self.close_stream(stream)
            return False
        self._keep(self.streams[stream].feed(data, time.monotonic()))
        return True

    def close_stream(self, stream: IO[bytes]) -> None:
        self._keep(self.streams.pop(stream).end())
        stream.close()

    def signal(self, number: int) -> None:
        """To the command's process group, and whatever it has started there."""
        if self.is_running and self._process is not None:
            signal_groups({self._process.pid}, number)

    def look(self, guard: Guard) -> bool:
        """Whether the command has ended since it was looked at last. What it leaves in its group is ended too."""
        process = self._process
        if process is None or not self.is_running:
            return False
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        ended = time.time()
        signal_groups({process.pid}, signal.SIGKILL)  # before it is waited for: then its number may be another's
        self._end(process.wait(), ended)
        guard.remove(process.pid)
        return True

    def finish(self) -> None:
        """Close what is open, and write down how it ended."""
        for stream in list(self.streams):
            self.close_stream(stream)
        self.steps.close()
        self._record.last_step = self._step()
        self._log.close(timestamp(time.time()))
        self._writer.do(self._write_last)

    def _write_last(self) -> None:
        self._record.dropped_lines = self._log.dropped
        write_record(self._record.path, self._record.content())

    def _end(self, status: int, ended: float) -> None:
        self._record.ended, self._record.status = ended, status
        self._record.last_step = self._step()
        self.write_record()
        if status != 0:
            content = self._record.content()
            self._writer.do(lambda: mark_failure(self._directory, content))

    def _refused(self, error: OSError | subprocess.SubprocessError) -> None:
        """What cannot be started: the directory or the program; `error` names which."""
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        name = getattr(error, "filename", None) or self._assignment.command[0]
        why = getattr(error, "strerror", None) or str(error)
        self._keep([f"[glmforge] {name}: cannot be started on {self._record.host}: {why}"])
        self._end(NOT_FOUND if missing else NOT_EXECUTABLE, time.time())

    def _keep(self, lines: list[str]) -> None:
        if not lines:
            return
        if self._find_step is not None:
            for line in lines:
                step = self._find_step(line)
                self._found_step = self._found_step if step is None else step
        self._record.say(lines)
        self._log.add(timestamp(time.time()), self._step(), lines)

    def _step(self) -> int | None:
        return self._found_step if self._find_step is not None else self.steps.read()
