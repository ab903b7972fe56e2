"""`glmforge train` in tasks of Slurm's that need not import PyTorch: a server has, and is forked for each of them.

    with warm_python(directory) as python:
        ...     # PYTHON=<python> HELD_UNTIL=<file>, for a script that runs "$PYTHON" -m glmforge train CONFIG

What Slurm starts, signals, kills and gets a status from is a small client. It passes its arguments, variables,
directory and streams on to a process that is forked for it, and so every signal; the status comes back. If the client
is killed, so is its process. Five seconds of each start's processor time are saved, and the rest is as it was.

With HELD_UNTIL a run waits in its job's first start before a step, on each rank, until a signal asks it to give way,
or it is killed, or the file is there, for ranks that nothing happens to. So it need not be long for a blow to meet it,
and the blow meets it at the same step always.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

HELD_AFTER = 9
"""Steps. What there is to see of the last steps is written a little later: wait for fewer."""

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_START_LIMIT_S = 300.0


@contextmanager
def warm_python(directory: Path) -> Iterator[str]:
    """Path of the program, within the block."""
    at, program = directory / "warm", directory / "python"
    client = f'"{sys.executable}" -I -S "{__file__}" client "{at}"'
    program.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
    program.chmod(0o755)
    with (directory / "warm.log").open("wb") as log:
        server = subprocess.Popen([sys.executable, __file__, "serve", at], stdin=subprocess.DEVNULL, stderr=log)
    try:
        deadline = time.monotonic() + _START_LIMIT_S
        while not at.exists():
            assert server.poll() is None, (directory / "warm.log").read_text()
            assert time.monotonic() < deadline, "the warm server does not start"
            time.sleep(0.05)  # looks at what it has done; the outcome does not depend on it
        yield str(program)
    finally:
        server.kill()
        server.wait()


def _client(at: str, words: list[str]) -> NoReturn:
    """In the task: as if it were the process that trains."""
    with socket.socket(socket.AF_UNIX) as connection:
        for number in _PASSED_ON:
            signal.signal(number, lambda number, frame: connection.send(bytes([number])))
        signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
        connection.connect(at)
        asked = json.dumps({"words": words, "environment": dict(os.environ), "directory": str(Path.cwd())}).encode()
        socket.send_fds(connection, [len(asked).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(asked)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        told = connection.recv(4)
    status = int.from_bytes(told, "big", signed=True) if told else 1
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _serve(at: Path) -> NoReturn:
    """Until it is killed."""
    import glmforge.recipes.train  # noqa: F401  what takes the time

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    with socket.socket(socket.AF_UNIX) as listener:
        being_made = at.with_name(f"{at.name}.new")
        listener.bind(str(being_made))
        listener.listen(64)
        being_made.rename(at)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setsid()
                _keep(connection)
            connection.close()


def _keep(connection: socket.socket) -> NoReturn:
    """Fork the process that trains, pass signals on to it, and its status back; it ends with its client."""
    length, streams, _, _ = socket.recv_fds(connection, 4, 3)
    asked = b""
    while len(asked) < int.from_bytes(length, "big"):
        asked += connection.recv(1 << 16)
    worker = os.fork()
    if worker == 0:
        connection.close()
        _train(streams, **json.loads(asked))
    watched = selectors.DefaultSelector()
    watched.register(connection, selectors.EVENT_READ)
    watched.register(ended := os.pidfd_open(worker), selectors.EVENT_READ)
    while ended not in {key.fd for key, _ in watched.select()}:
        numbers = connection.recv(64)
        for number in numbers or [signal.SIGKILL]:
            os.kill(worker, number)
        if not numbers:
            break
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    try:
        connection.send(status.to_bytes(4, "big", signed=True))
    finally:
        os._exit(0)


def _train(streams: list[int], words: list[str], environment: dict[str, str], directory: str) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdout = os.fdopen(1, "w", closefd=False)  # the server's own knew whether it could seek
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    assert words[:2] == ["-m", "glmforge"], words
    sys.argv = ["glmforge", *words[2:]]
    if "HELD_UNTIL" in environment and environment.get("SLURM_RESTART_COUNT", "0") == "0":
        _hold(Path(environment["HELD_UNTIL"]))
    from glmforge.__main__ import main

    status = 0
    try:
        main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _hold(until: Path) -> None:
    from glmforge.training.trainer import Trainer

    step, vote, votes = Trainer.step, Trainer.vote, list[str]()

    def held_step(trainer, *arguments, **options):  # type: ignore[no-untyped-def]
        while trainer.state.step == HELD_AFTER and not votes and not until.exists():
            time.sleep(0.02)  # whatever comes ends this: the outcome does not depend on when
        return step(trainer, *arguments, **options)

    def noted_vote(trainer: Trainer, name: str) -> None:
        votes.append(name)
        vote(trainer, name)

    Trainer.step, Trainer.vote = held_step, noted_vote  # type: ignore[method-assign]


if __name__ == "__main__":
    if sys.argv[1] == "client":
        _client(sys.argv[2], sys.argv[3:])
    _serve(Path(sys.argv[2]))
