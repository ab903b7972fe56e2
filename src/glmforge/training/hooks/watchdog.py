"""A run that hangs says where, and ends, so that its launcher starts it again.

One rank that waits for ever makes all wait, at the price of the whole cluster. A thread looks at the time since the
last progress of the training loop; when that is too long it writes down what this rank was doing and ends the
process. Four sources, since each is blind to something: Python's stacks (faulthandler), the native stacks (py-spy
with --native, where it is installed), the collectives that were begun and not ended (PyTorch's flight recorder: the
rank that lacks one the others have is the culprit), and a timer in C, which needs no GIL, for a process in which no
thread can run any more.

Slow work between two steps says `trainer.alive(what)`, which is a sign of life too. It counts for ranks that wait for
it in a collective as well: they read it from the run's directory (`glmforge.observe.alive`) before they give up. While
the watchdog watches it is the judge, so that every rank of a hung run writes its file: torch's own time limit of
collectives is lifted.
"""

import faulthandler
import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import torch

from glmforge.observe.alive import Mark, read_mark, write_mark
from glmforge.observe.run import RunDirectory, RunFileError, record_event
from glmforge.parallel.groups import time_limit
from glmforge.runtime.launch import FLIGHT_RECORDER_EVENTS
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

HANG_EXIT_CODE = 124
"""Status of a process that was ended for hanging, as timeout(1) has it. Launchers restart it like any failure."""

_FIRST_STEP = 3
"""The first step of a process may take this many times longer: it compiles and opens connections."""
_STACKS_LIMIT_S = 30
_GRACE_S = 60.0
"""How long after the watching thread was due the timer in C waits."""
_LINGER_S = 5.0
"""A process that ends breaks its peers' connections, and they are to write their stacks first."""
_LOOK_S = 5.0
"""How often the thread looks, and tells other ranks that this one is at work."""
_COLLECTIVES = timedelta(days=7)
"""Time limit of collectives while the watchdog is there to judge."""


def prepare_environment(output_dir: Path | None = None) -> None:
    """Switch PyTorch's flight recorder on, unless the user has decided; before the process group is made.

    With the run's directory, what NCCL writes when it loses patience first goes there too.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORDER_EVENTS)
    if output_dir is not None and torch.cuda.is_available():
        hangs = RunDirectory(output_dir).hangs
        hangs.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
        os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(hangs.absolute() / "nccl-rank-"))


class WatchdogHook(Hook):
    """Ends the process with `HANG_EXIT_CODE` when there was no sign of life for `timeout_s` seconds.

    Each call of a hook method is one, and so is slow work that says so, on this rank or another. What it writes is
    `<run>/hangs/<time>-rank-N.txt`. With `timeout_s` None it ends nothing, and only tells the job's supervisor of slow
    work.
    """

    name = "watchdog"
    priority = Priority.GUARD
    after = ("run lock",)

    def __init__(self, output_dir: Path, timeout_s: float | None) -> None:
        self.root, self.timeout_s = output_dir, timeout_s
        self._trainer: Trainer | None = None
        self._last = (time.monotonic(), "nothing")
        self._phase = "not begun"
        self._allowed_s = self._limit(_FIRST_STEP)
        self._timer_at = 0.0
        self._slow: Mark | None = None
        """The last progress of slow work on this rank, until other ranks have been notified."""
        self._others: Mark | None = None
        """What a rank said last, as read when this one was silent."""
        self._cannot_write = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._while_watching = ExitStack()

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._stop.clear()
        self._allowed_s = self._limit(_FIRST_STEP)
        if self.timeout_s is not None and trainer.world.size > 1:
            self._while_watching.enter_context(time_limit(_COLLECTIVES))
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.sign_of_life("on_train_start")
        self._thread.start()

    def on_step_start(self, trainer: Trainer) -> None:
        self._phase = trainer.phase.name
        self.sign_of_life("on_step_start")

    def on_gradients(self, trainer: Trainer) -> None:
        self.sign_of_life("on_gradients")

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self._allowed_s = self._limit()
        self.sign_of_life("on_step_end")

    def on_rollback(self, trainer: Trainer) -> None:
        self.sign_of_life("on_rollback")

    def on_alive(self, trainer: Trainer, what: str) -> None:
        if self._thread is not None:
            self._last = (time.monotonic(), what)
            self._slow = Mark(time.time(), trainer.world.rank, what)

    def on_train_end(self, trainer: Trainer) -> None:
        self.sign_of_life("on_train_end")

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        faulthandler.cancel_dump_traceback_later()
        self._while_watching.close()

    def sign_of_life(self, what: str) -> None:
        """The run is alive; the report says `what` it is doing."""
        self._last = (time.monotonic(), what)
        self._set_timer()

    def _limit(self, times: int = 1) -> float:
        return math.inf if self.timeout_s is None else self.timeout_s * times

    def _set_timer(self) -> None:
        """End a process in which no thread can run any more, some time after the thread would have."""
        self._timer_at = time.monotonic()
        # Onto stderr, not into a file: that would have to be opened by every rank of every run that never hangs.
        if sys.__stderr__ is not None and self.timeout_s is not None:
            faulthandler.dump_traceback_later(self._allowed_s + _GRACE_S, exit=True, file=sys.__stderr__)

    def _watch(self) -> None:
        look_s = _LOOK_S if self.timeout_s is None else min(_LOOK_S, self.timeout_s / 10)
        while not self._stop.wait(look_s):
            slow, self._slow = self._slow, None
            if slow is not None:
                self._tell_others(slow, look_s)
            seen_at, what = self._last
            silent_s = time.monotonic() - seen_at
            if silent_s > self._allowed_s / 2:
                self._others = read_mark(RunDirectory(self.root).alive)
                if self._others is not None:
                    seen_at = max(seen_at, time.monotonic() - self._others.age_s)
            if time.monotonic() - seen_at > self._allowed_s:
                self._end_process(silent_s, what)
            if seen_at > self._timer_at:
                self._set_timer()

    def _tell_others(self, mark: Mark, look_s: float) -> None:
        """Unless a rank has just done so: if all are at work, one of them writes."""
        path = RunDirectory(self.root).alive
        newest = read_mark(path)
        if newest is not None and newest.age_s < look_s:
            return
        try:
            write_mark(path, mark)
        except OSError as error:
            if not self._cannot_write:
                _say(
                    f"glmforge: rank {mark.rank}: {path} cannot be written ({error.strerror}); other ranks may be "
                    f"terminated"
                )
            self._cannot_write = True

    def _end_process(self, silent_s: float, what: str) -> None:
        assert self._trainer is not None
        started, rank = time.monotonic(), self._trainer.world.rank
        silence = f"no progress for {silent_s:.0f} s, since {what}"
        if self._others is not None and self._others.rank != rank:
            silence += f"; last progress of any rank: {self._describe(self._others)}"
        _say(f"glmforge: rank {rank} hangs: {silence}; terminating it")
        try:
            path = self._write_report(self._trainer, silent_s, what)
            _say(f"glmforge: rank {rank}: see {path}")
            if self._trainer.world.is_main:
                # Past the bus: the thread that hangs may be in one of its sinks.
                detail = f"{silence}; see {path.parent}"
                record_event(self.root, "hang", step=self._trainer.state.step, detail=detail)
            linger_s = min(_LINGER_S, self._limit() / 4)
            time.sleep(max(0.0, started + linger_s - time.monotonic()))
        except (OSError, RunFileError) as error:
            _say(f"glmforge: rank {rank}: nothing could be written ({error})")
        finally:
            os._exit(HANG_EXIT_CODE)

    def _describe(self, mark: Mark) -> str:
        return f"rank {mark.rank}'s, {mark.age_s:.0f} s ago: {mark.what}"

    def _write_report(self, trainer: Trainer, silent_s: float, what: str) -> Path:
        state, rank = trainer.state, trainer.world.rank
        now = datetime.now(UTC)
        path = RunDirectory(self.root).hangs / f"{now:%Y%m%dT%H%M%SZ}-rank-{rank:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = {
            "time": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "rank": f"{rank} of {trainer.world.size}",
            "steps done": state.step,
            "phase": "all done" if state.finished else self._phase,
            "seconds without progress": round(silent_s, 1),
            "last progress": what,
            "last progress of any rank": self._describe(self._others) if self._others is not None else "not known",
        }
        write_report(path, header)
        return path


def write_report(path: Path, header: Mapping[str, Any]) -> None:
    """Write what this process is doing to a file; each part is on the disk before the next one is tried."""
    parts: dict[str, Callable[[IO[str]], None]] = {
        "Python stacks": _write_python_stacks,
        "unfinished collectives": _write_open_collectives,
        "native stacks": _write_native_stacks,
    }
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{name}: {value}\n" for name, value in header.items())
        for title, write in parts.items():
            file.write(f"\n== {title} ==\n")
            file.flush()
            write(file)
            file.flush()
            os.fsync(file.fileno())


def _write_python_stacks(file: IO[str]) -> None:
    faulthandler.dump_traceback(file, all_threads=True)


def _write_native_stacks(file: IO[str]) -> None:
    py_spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    timeout = shutil.which("timeout")
    if py_spy is None or timeout is None:
        file.write("py-spy or timeout is not installed\n")
        return
    # py-spy stops this process while it looks: the limit is another process's, and the output goes into a file, as
    # nothing would drain a pipe.
    limited = [timeout, "-s", "KILL", str(_STACKS_LIMIT_S)]
    dump = [py_spy, "dump", "--native", "--pid", str(os.getpid())]
    done = subprocess.run([*limited, *dump], stdout=file, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        file.write(f"py-spy exited with status {done.returncode}; it needs CAP_SYS_PTRACE, and time\n")


def _write_open_collectives(file: IO[str]) -> None:
    entries = open_collectives()
    if entries is None:
        file.write("not recorded (TORCH_FR_BUFFER_SIZE, set before the process group is made)\n")
        return
    for entry in entries:
        group = " ".join(entry.get("process_group", []))
        shapes = f"{entry.get('input_sizes')} -> {entry.get('output_sizes')}"
        sequence = entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")
        file.write(
            f"{entry.get('profiling_name')} number {sequence} of group {group}: {entry.get('state')}, {shapes}\n"
        )
    if not entries:
        file.write("none\n")


def open_collectives() -> list[dict[str, Any]] | None:
    """What the flight recorder knows of collectives that have been begun and not ended; None if it is not on."""
    try:
        from torch._C import _distributed_c10d as c10d
    except ImportError:  # torch without distributed
        return None
    # NCCL has a recorder of its own, the other backends share one.
    dumps = [getattr(c10d, name, None) for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json")]
    entries: list[dict[str, Any]] = []
    recorded = False
    for dump in filter(None, dumps):
        found = json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", [])
        recorded = recorded or bool(found)
        entries += [entry for entry in found if not entry.get("retired") and entry.get("state") != "completed"]
    return entries if recorded else None


def _say(line: str) -> None:
    """Onto stderr past Python's locks, which the thread that hangs may hold."""
    os.write(2, f"{line}\n".encode())
