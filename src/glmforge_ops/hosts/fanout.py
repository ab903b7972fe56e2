"""One command on many machines at once: an answer from every one of them, whether or not others fail.

A machine that cannot be reached, hangs or fails is an answer like any other. What a machine prints is bounded, and what
is still running when the caller gives up is killed.

asyncio's subprocesses rather than ClusterShell's engine (1.10 was tried): that collects output by lines, so 60 MB
without a line break keep it busy for a minute and stay in memory. Its node sets are used (`glmforge.runtime.hostfile`).
"""

import asyncio
import os
import signal
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from glmforge.runtime.hostfile import LOCAL
from glmforge.runtime.ssh import UNREACHABLE, Ssh, explain_unreachable, last_line
from glmforge.runtime.waiting import STEP_S

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
    """Result of the command on one machine.

    Attributes:
        status: the command's exit status; None if it has none (never started, ended by the time limit).
        stdout: at most `MAX_OUTPUT` bytes of it.
        reason, fix: what went wrong and what to do; empty if nothing did.
        asked_at: when its command was started, in seconds since 1970 by our clock; 0 if it was not.
    """

    host: str
    outcome: Outcome
    status: int | None = None
    stdout: bytes = b""
    stderr: str = ""
    seconds: float = 0.0
    reason: str = ""
    fix: str = ""
    asked_at: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.outcome is Outcome.DONE

    @property
    def problem(self) -> str:
        """Reason and fix in one line."""
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


@dataclass(frozen=True)
class Fanout:
    """Asks machines, `at_once` at the same time, through `ssh`; this machine itself without."""

    ssh: Ssh = field(default_factory=Ssh)
    at_once: int = AT_ONCE

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
            stdin: what every script reads; or what makes it from the host's name, when its turn comes.
            on_answer: called with each answer as it comes. If it raises, what is still running is ended.
            hold: `stdin` stays open as long as this process waits for the script, which so notices if it is killed.
            here: the scripts run on this machine, one for each host, which each reaches through ssh itself.
        """
        answers: dict[str, Answer] = {}
        turns = asyncio.Semaphore(self.at_once)

        async def ask(host: str) -> Answer:
            async with turns:
                text = script(host) if callable(script) else script
                command = ["sh", "-c", text] if here or host in LOCAL else self.ssh.to_shell(host, text)
                return await _ask(host, command, timeout_s, stdin(host) if callable(stdin) else stdin, hold)

        async def ask_all() -> None:
            tasks = [asyncio.create_task(ask(host)) for host in hosts]
            waking = asyncio.create_task(_wake())
            try:
                for coming in asyncio.as_completed(tasks):
                    answer = await coming
                    answers[answer.host] = answer
                    on_answer(answer)
            finally:
                for task in (waking, *tasks):
                    task.cancel()
                await asyncio.wait([waking, *tasks])

        asyncio.run(ask_all())
        return {host: answers[host] for host in hosts}


async def _wake() -> None:
    """A signal that another thread receives does not wake the loop; its handler runs when something else does."""
    while True:
        await asyncio.sleep(STEP_S)


async def _ask(host: str, command: list[str], timeout_s: float, stdin: bytes, hold: bool) -> Answer:
    asked_at, started = time.time(), time.monotonic()
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
    except OSError as error:
        reason = f"'{command[0]}' cannot be started here: {error.strerror}"
        return Answer(host, Outcome.FAILED, reason=reason, fix=f"install '{command[0]}', or correct --ssh")
    talk = asyncio.ensure_future(_talk(child, stdin, hold))
    try:
        in_time, _ = await asyncio.wait([talk], timeout=timeout_s)
    finally:
        if not talk.done():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await asyncio.wait([talk], timeout=_END_S)  # one that hangs in a file system survives even SIGKILL
    out, err = talk.result() if talk.done() else (b"", "")
    status = child.returncode if in_time else None
    outcome, reason, fix = _judge(status, err, timeout_s, through_ssh=host not in LOCAL)
    return Answer(host, outcome, status, out, err, time.monotonic() - started, reason, fix, asked_at)


async def _talk(child: Process, stdin: bytes, hold: bool) -> tuple[bytes, str]:
    """What the child prints until it ends, bounded."""
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    _, out, err = await asyncio.gather(
        _write(child.stdin, stdin, hold), _read(child.stdout, MAX_OUTPUT), _read(child.stderr, _MAX_STDERR)
    )
    await child.wait()
    return out, err.decode(errors="replace")


async def _write(stream: asyncio.StreamWriter, content: bytes, hold: bool) -> None:
    with suppress(ConnectionError):  # it does not read to the end: its status says whether that is a failure
        stream.write(content)
        await stream.drain()
    if not hold:
        stream.close()


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    kept = bytearray()
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: limit - len(kept)]
    return bytes(kept)


def _judge(status: int | None, err: str, timeout_s: float, through_ssh: bool) -> tuple[Outcome, str, str]:
    """The outcome, the reason and the fix."""
    if status is None:
        fix = "look at the machine's load and at hanging file systems, or give it more time"
        return Outcome.TIMED_OUT, f"no answer within {timeout_s:g} s", fix
    if status == UNREACHABLE and through_ssh:
        return Outcome.UNREACHABLE, *explain_unreachable(err)
    if status != 0:
        return Outcome.FAILED, last_line(err) or f"ended with status {status}", ""
    return Outcome.DONE, "", ""
