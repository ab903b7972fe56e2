"""One command on many machines at once: an answer from every one of them, whatever becomes of the others.

A machine that cannot be reached, hangs or fails is an answer like any other. What a machine prints is bounded, and what
is still running when the caller gives up is killed.

A pool of threads, one machine each, rather than ClusterShell's engine (1.10 was tried): that collects output by lines,
so 60 MB without a line break keep it busy for a minute and stay in memory; it waits until the output closes, so what a
command leaves in the background uses up its time limit; and its event loop does not hand out answers as they come. Its
node sets are used (`glmforge.runtime.hostfile`).
"""

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge.runtime.waiting import as_done

AT_ONCE = 64
MAX_OUTPUT = 4 << 20
"""Bytes kept of what one machine prints; the rest is read and dropped."""
_MAX_STDERR = 1 << 14
_CHUNK = 1 << 16
_END_S = 5.0


Script = str | Callable[[str], str]
"""For a POSIX shell; or what makes it from the host's name."""


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
        reason, mend: what went wrong and how to fix it; empty if nothing did.
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
        self._is_stopped = False

    def run(
        self,
        hosts: Sequence[str],
        script: Script,
        timeout_s: float,
        stdin: bytes | Callable[[str], bytes] = b"",
        on_answer: Callable[[Answer], None] = lambda answer: None,
        hold: bool = False,
        here: bool = False,
    ) -> dict[str, Answer]:
        """The answers by host, in the order of `hosts`, when all have come.

        Args:
            timeout_s: for each host, counted from when it is asked.
            stdin: what every script gets to read; or what makes it from the host's name.
            on_answer: called with each answer as it comes, in the calling thread.
            hold: `stdin` stays open as long as this process waits for the script, which so learns when nobody does.
            here: the scripts run on this machine, one for each host, which each reaches through ssh itself.
        """
        answers: dict[str, Answer] = {}
        for answer in self.answers(hosts, script, timeout_s, stdin, hold, here):
            answers[answer.host] = answer
            on_answer(answer)
        return {host: answers[host] for host in hosts}

    def answers(
        self,
        hosts: Sequence[str],
        script: Script,
        timeout_s: float,
        stdin: bytes | Callable[[str], bytes] = b"",
        hold: bool = False,
        here: bool = False,
    ) -> Iterator[Answer]:
        """Answers as they come. Whoever stops iterating ends what is still running."""
        self._is_stopped = False

        def ask(host: str) -> Answer:
            text = script(host) if callable(script) else script
            command = ["sh", "-c", text] if here or host in LOCAL else self.ssh.to_shell(host, text)
            # Input is made when a host's turn comes: a thousand need not be in memory at once.
            return self._ask(host, command, timeout_s, stdin(host) if callable(stdin) else stdin, hold)

        with ThreadPoolExecutor(max(1, min(self.at_once, len(hosts)))) as pool:
            futures = [pool.submit(ask, host) for host in hosts]
            try:
                for future in as_done(futures):
                    yield future.result()
            finally:
                with self._lock:
                    self._is_stopped = True
                    for child in self._running:
                        _kill(child)
                pool.shutdown(cancel_futures=True)

    def _ask(self, host: str, command: list[str], timeout_s: float, stdin: bytes, hold: bool) -> Answer:
        asked_at, started = time.time(), time.monotonic()
        try:
            with self._lock:
                if self._is_stopped:
                    return Answer(host, Outcome.FAILED, reason="was cancelled")
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
            out, err, in_time = _converse(child, stdin, started + timeout_s, hold)
        finally:
            with self._lock:  # not among those to be killed once its pid may be another's
                self._running.discard(child)
        status = child.poll() if in_time else None
        outcome, reason, mend = _judge(status, err, timeout_s, through_ssh=host not in LOCAL)
        return Answer(host, outcome, status, out, err, time.monotonic() - started, reason, mend, asked_at)


def _judge(status: int | None, err: str, timeout_s: float, through_ssh: bool) -> tuple[Outcome, str, str]:
    """The outcome, the reason and the fix."""
    if status is None:
        mend = "look at the machine's load and at hanging file systems, or give it more time"
        return Outcome.TIMED_OUT, f"no answer within {timeout_s:g} s", mend
    if status == UNREACHABLE and through_ssh:
        return Outcome.UNREACHABLE, *explain_unreachable(err)
    if status != 0:
        return Outcome.FAILED, last_line(err) or f"ended with status {status}", ""
    return Outcome.DONE, "", ""


def _converse(child: subprocess.Popen[bytes], stdin: bytes, until: float, hold: bool) -> tuple[bytes, str, bool]:
    """What the child prints, bounded, and whether it ended in time. It is killed, with what it left in its session."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    kept = {child.stdout.fileno(): (bytearray(), MAX_OUTPUT), child.stderr.fileno(): (bytearray(), _MAX_STDERR)}
    ended, writing, rest = os.pidfd_open(child.pid), child.stdin.fileno(), memoryview(stdin)
    waits = select.poll()
    for descriptor in (ended, *kept):
        waits.register(descriptor, select.POLLIN)
    waits.register(writing, select.POLLOUT)
    os.set_blocking(writing, False)
    in_time, reading = False, set(kept)
    try:
        while (reading or not in_time) and (left := until - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in waits.poll(left * 1000)]
            if ended in ready:
                in_time, until = True, time.monotonic() + _END_S
                waits.unregister(ended)
                _kill(child)  # what it left in its session: then its output ends
            for descriptor in reading.intersection(ready):
                chunk, (content, limit) = os.read(descriptor, _CHUNK), kept[descriptor]
                content += chunk[: limit - len(content)]
                if not chunk:
                    waits.unregister(descriptor)
                    reading.remove(descriptor)
            if writing in ready:
                try:
                    rest = rest[os.write(writing, rest[:_CHUNK]) :]
                except BrokenPipeError:  # it does not read to the end: its status tells whether that is well
                    rest = rest[:0]
                if not rest:
                    waits.unregister(writing)
                    if not hold:
                        child.stdin.close()
    finally:
        _kill(child)
        os.close(ended)
        for pipe in (child.stdin, child.stdout, child.stderr):
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):  # one that hangs in a file system survives even SIGKILL
        child.wait(_END_S)
    out, err = (bytes(content) for content, _ in kept.values())
    return out, err.decode(errors="replace"), in_time


def _kill(child: subprocess.Popen[bytes]) -> None:
    """The whole session of the child. Its id stays its own until it is waited for."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
