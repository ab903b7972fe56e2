"""One command on many machines at once: an answer from every one of them, whatever becomes of the others.

A machine that cannot be reached, hangs or fails is an answer like any other; it costs the rest nothing but its place
among the `at_once` that are asked at the same time. What a machine prints is bounded, so that a thousand of them do
not fill the memory, and what is still running when the caller gives up is ended.

At once rather than through a tree of machines: each answer then depends on one machine alone, and a thousand commands
that print a few kilobytes are no load for the one that asks.
"""

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from queue import SimpleQueue
from typing import IO

from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge.runtime.waiting import as_done

AT_ONCE = 64
"""Machines that are asked at the same time."""

MAX_OUTPUT = 4 << 20
"""Bytes kept of what one machine prints; the rest is read and dropped."""

GO = b"go\n"
"""What a script that says it is ready is told."""

_CHUNK = 1 << 16
_STDERR = 1 << 14
_END_S = 5.0


class Outcome(StrEnum):
    """How asking one machine ended."""

    DONE = "done"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Answer:
    """What became of the command on one machine.

    Attributes:
        status: the command's exit status; None if it has none (never started, ended by the time limit).
        stdout: at most `MAX_OUTPUT` bytes of it.
        reason, mend: in words, for whatever is not done; empty otherwise.
        asked_at: when its command was started, in seconds since 1970 by our clock; 0 if it was not.
    """

    host: str
    outcome: Outcome
    status: int | None = None
    stdout: bytes = b""
    stderr: str = ""
    seconds: float = 0.0
    reason: str = ""
    mend: str = ""
    asked_at: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.outcome is Outcome.DONE


@dataclass
class Fanout:
    """Asks machines, `at_once` at the same time, through `ssh`; this machine itself without.

    `environment` is added to that of the commands on this machine, ssh's included.
    """

    ssh: Ssh = field(default_factory=Ssh)
    at_once: int = AT_ONCE
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()

    def run(
        self,
        hosts: Sequence[str],
        script: str | Callable[[str], str],
        timeout_s: float,
        stdin: bytes | Callable[[str], bytes] = b"",
        on_answer: Callable[[Answer], None] | None = None,
        ready: bytes = b"",
        hold: bool = False,
    ) -> dict[str, Answer]:
        """The answers by host, in the order of `hosts`, when all have come.

        Args:
            script: for a POSIX shell; or what makes it from the host's name.
            timeout_s: for each host, counted from when it is asked.
            stdin: what every script gets to read; or what makes it from the host's name.
            on_answer: called with each answer as it comes, in the calling thread.
            ready: what a script prints before it goes on. `stdin` then stays open until it has printed that, or its
                output has ended, and `GO` is added: who has been killed by then tells nobody to go on.
            hold: `stdin` stays open as long as somebody waits for the script, which so hears when nobody does.
        """
        answers: dict[str, Answer] = {}
        for answer in self.answers(hosts, script, timeout_s, stdin, ready, hold):
            answers[answer.host] = answer
            if on_answer is not None:
                on_answer(answer)
        return {host: answers[host] for host in hosts}

    def answers(
        self,
        hosts: Sequence[str],
        script: str | Callable[[str], str],
        timeout_s: float,
        stdin: bytes | Callable[[str], bytes] = b"",
        ready: bytes = b"",
        hold: bool = False,
    ) -> Iterator[Answer]:
        """Answers as they come. Whoever stops iterating ends what is still running."""
        self._stopped.clear()
        with ThreadPoolExecutor(max(1, min(self.at_once, len(hosts)))) as pool:
            make = script if callable(script) else lambda _: script
            give = stdin if callable(stdin) else lambda _: stdin
            # Each host's input is made when its turn comes: a thousand of them need not be in memory at once.
            futures = [
                pool.submit(lambda host: self._ask(host, make(host), timeout_s, give(host), ready, hold), each)
                for each in hosts
            ]
            try:
                for future in as_done(futures):
                    yield future.result()
            finally:
                self._stop()
                pool.shutdown(cancel_futures=True)

    def _stop(self) -> None:
        self._stopped.set()
        with self._lock:
            for child in self._running:
                _kill(child)

    def _ask(self, host: str, script: str, timeout_s: float, stdin: bytes, ready: bytes, hold: bool) -> Answer:
        here = host in LOCAL
        command = ["sh", "-c", script] if here else self.ssh.to_shell(host, script)
        asked_at, started = time.time(), time.monotonic()
        try:
            with self._lock:
                if self._stopped.is_set():
                    return Answer(host, Outcome.FAILED, reason="was not asked any more")
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=os.environ | dict(self.environment),
                    start_new_session=True,
                )
                self._running.add(child)
        except OSError as error:
            reason = f"'{command[0]}' cannot be started here: {error.strerror}"
            return Answer(host, Outcome.FAILED, reason=reason, mend=f"install '{command[0]}', or correct --ssh")
        try:
            out, err, in_time = _converse(child, stdin, timeout_s, ready, hold)
        finally:
            with self._lock:  # no longer among those to be killed when its pid may become another's
                self._running.discard(child)
        status = child.wait() if _has_ended(child, _END_S) else None
        seconds = time.monotonic() - started
        judged = _judge(host, status if in_time else None, out, err, seconds, timeout_s, through_ssh=not here)
        return replace(judged, asked_at=asked_at)


def _judge(
    host: str, status: int | None, out: bytes, err: str, seconds: float, timeout_s: float, through_ssh: bool
) -> Answer:
    reason = mend = ""
    if status is None:
        outcome, reason = Outcome.TIMED_OUT, f"no answer within {timeout_s:g} s"
        mend = "look at the machine's load and at hanging file systems, or give it more time"
    elif status == UNREACHABLE and through_ssh:
        outcome, (reason, mend) = Outcome.UNREACHABLE, explain_unreachable(err)
    elif status != 0:
        outcome, reason = Outcome.FAILED, last_line(err) or f"ended with status {status}"
    else:
        outcome = Outcome.DONE
    return Answer(host, outcome, status, out, err, seconds, reason, mend)


def _converse(
    child: subprocess.Popen[bytes], stdin: bytes, timeout_s: float, ready: bytes, hold: bool
) -> tuple[bytes, str, bool]:
    """What the child prints, bounded; and whether it ended in time. A thread for each pipe, so that none blocks.

    It is killed, but not yet waited for: until then its pid stays its own.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    kept: dict[str, bytes] = {}
    is_ready: SimpleQueue[bool] = SimpleQueue()
    threads = [
        threading.Thread(target=_read, args=(child.stdout, MAX_OUTPUT, kept, "out", ready, is_ready), daemon=True),
        threading.Thread(target=_read, args=(child.stderr, _STDERR, kept, "err"), daemon=True),
        threading.Thread(target=_write, args=(child.stdin, stdin, is_ready if ready or hold else None), daemon=True),
    ]
    for thread in threads:
        thread.start()
    in_time = _has_ended(child, timeout_s)
    _kill(child)  # also whatever it left in its session, which could keep the pipes open
    is_ready.put(False)
    for thread in threads:
        thread.join(_END_S)
    return kept.get("out", b""), kept.get("err", b"").decode(errors="replace"), in_time


def _has_ended(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether the child ends in time; it is not waited for. One that hangs in a file system survives a kill."""
    descriptor = os.pidfd_open(child.pid)
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(timeout_s * 1000))
    finally:
        os.close(descriptor)


def _read(
    pipe: IO[bytes],
    limit: int,
    kept: dict[str, bytes],
    name: str,
    ready: bytes = b"",
    is_ready: SimpleQueue[bool] | None = None,
) -> None:
    """Keeps what comes, and tells `is_ready` when `ready` has come, or when nothing comes any more."""
    chunks, size, last = [], 0, b""
    with pipe:
        while chunk := pipe.read1(_CHUNK):  # type: ignore[attr-defined]  # a buffered pipe
            if size < limit:
                chunks.append(chunk[: limit - size])
                size += len(chunk)
            if is_ready is not None and ready and ready in last + chunk:
                is_ready.put(True)
                is_ready = None
            last = (last + chunk)[-len(ready) :] if ready else b""
    kept[name] = b"".join(chunks)
    if is_ready is not None:
        is_ready.put(False)


def _write(pipe: IO[bytes], content: bytes, is_ready: SimpleQueue[bool] | None) -> None:
    # One that ended without reading to the end tells so by its status.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(content)
        if is_ready is not None:
            pipe.flush()
            if is_ready.get():
                pipe.write(GO)


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The whole session of the child."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
