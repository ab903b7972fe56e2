"""`glmforge`, `torchrun` and `python` for tests that start real processes, without seconds of imports each.

    environment = {"PATH": f"{programs()}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", "glmforge train run.yaml && glmforge report runs/run"], env=environment)

The programs in `programs()` ask one process of this test run, which has imported what commands import, to fork. The
fork takes over arguments, environment, working directory, standard streams and which signals are ignored, and leads a
session of its own. The program passes signals on to it, waits, and ends as it does; if the program is killed, so is the
fork. Its process number is not the fork's, so tests of numbers, and of what happens before imports are done, start
`sys.executable`.

`python` forks for modules and for scripts. What has to be known before an interpreter starts cannot be taken over: with
PYTHONPATH set, or with options other than torchrun's -u, it is the real one.
"""

import atexit
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from helpers.distributed import fork_server

_MODULES = {"glmforge": "glmforge", "torchrun": "torch.distributed.run"}
"""Program -> the module that it is."""
_SIGNALS = tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)))
"""Those that programs pass on."""
_MAX_BYTES = 180_000  # of arguments and environment: what a socket takes at once
_PATIENCE_S = 120.0

_PROGRAM = """#!{python} -IS
import json, os, select, signal, socket, sys

name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
if name != "python":
    arguments = ["-m", {modules}[name], *arguments]
else:
    first = next((word for word in arguments if word != "-u"), "")
    if "PYTHONPATH" in os.environ or first != "-m" and not first.endswith(".py"):
        os.execv("{python}", ["{python}", *arguments])
signals = {signals}
# Signals are read from a socket: a handler would not run for one that comes just before this waits.
reading, writing = socket.socketpair()
writing.setblocking(False)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as starter:
    starter.connect("{address}")
    ignored = [number for number in signals if signal.getsignal(number) == signal.SIG_IGN]
    order = [arguments, os.getcwd(), dict(os.environ), ignored]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until they can be passed on
    socket.send_fds(starter, [json.dumps(order).encode()], [0, 1, 2])
    signal.set_wakeup_fd(writing.fileno())
    for number in signals:
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    while starter not in select.select([starter, reading], [], [])[0]:
        for number in reading.recv(64):
            starter.send(bytes([number]))
    status = json.loads(starter.recv(100))
if status < 0:
    if status != -signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@cache
def programs() -> Path:
    """The directory of the programs, which work until this process ends."""
    folder = tempfile.TemporaryDirectory(prefix="prepared-")
    directory = Path(folder.name)
    address = directory / "starter"
    for name in (*_MODULES, "python"):
        program = directory / name
        text = _PROGRAM.format(python=sys.executable, modules=_MODULES, signals=_SIGNALS, address=address)
        program.write_text(text)
        program.chmod(0o755)
    process = fork_server().Process(target=_start_what_is_asked_for, args=(address,))
    process.start()

    def end() -> None:
        process.kill()
        process.join()
        folder.cleanup()

    atexit.register(end)
    deadline = time.monotonic() + _PATIENCE_S
    while not address.exists():
        assert process.is_alive(), "the process that starts commands has ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the server's imports take seconds
    return directory


@dataclass(frozen=True)
class _Order:
    """What a program has been called with."""

    arguments: list[str]  # [-u] -m MODULE ..., or [-u] SCRIPT ...
    directory: str
    environment: dict[str, str]
    ignored: list[int]  # signals
    streams: list[int]


@dataclass
class _Starter:
    """Forks for programs, and tells each of them how its fork has ended."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    program_of: dict[int, socket.socket] = field(default_factory=dict)  # by the fork's process number

    def serve(self) -> _Order:
        """Returns in forks only."""
        parent = parent_process()
        assert parent is not None
        self.selector.register(parent.sentinel, selectors.EVENT_READ, ("end of tests", 0))
        self.selector.register(self.listener, selectors.EVENT_READ, ("program", 0))
        while True:
            # A program that was killed before another one began has no fork any more when that one's begins.
            for key, _ in sorted(self.selector.select(), key=lambda event: event[0].data[0] == "program"):
                match key.data:
                    case ("end of tests", _):
                        self._end()
                    case ("program", _):
                        if order := self._fork():
                            return order
                    case ("message", pid):
                        self._pass_on(pid)
                    case ("end", pid):
                        self._report(key.fd, pid)

    def close(self) -> None:
        """What a fork does not need."""
        for program in self.program_of.values():
            program.close()
        self.listener.close()
        self.selector.close()

    def _fork(self) -> _Order | None:
        program = self.listener.accept()[0]
        streams: list[int] = []
        try:
            message, streams, _, _ = socket.recv_fds(program, _MAX_BYTES, 3)
            order = _Order(*json.loads(message), streams)
        except (ConnectionError, ValueError):  # it was killed before it had said what it wants
            program.close()
            for stream in streams:
                os.close(stream)
            return None
        pid = os.fork()
        if pid == 0:
            program.close()
            return order
        for stream in streams:
            os.close(stream)
        self.program_of[pid] = program
        self.selector.register(program, selectors.EVENT_READ, ("message", pid))
        self.selector.register(os.pidfd_open(pid), selectors.EVENT_READ, ("end", pid))
        return None

    def _pass_on(self, pid: int) -> None:
        """A signal that the program got; that it has been killed is passed on, too."""
        if pid not in self.program_of:
            return  # ended in the meantime
        number = b""
        with suppress(ConnectionError):
            number = self.program_of[pid].recv(1)
        if number:
            os.kill(pid, number[0])
        else:
            self.selector.unregister(self.program_of[pid])
            _kill(pid)

    def _end(self) -> None:
        for pid in self.program_of:
            _kill(pid)
        shutil.rmtree(Path(self.listener.getsockname()).parent, ignore_errors=True)
        sys.exit()

    def _report(self, pidfd: int, pid: int) -> None:
        self.selector.unregister(pidfd)
        os.close(pidfd)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with self.program_of.pop(pid) as program:
            if program in self._registered():
                self.selector.unregister(program)
                with suppress(ConnectionError):  # killed in this moment
                    program.send(json.dumps(status).encode())

    def _registered(self) -> list[Any]:
        return [key.fileobj for key in self.selector.get_map().values()]


def _start_what_is_asked_for(address: Path) -> None:
    """The process that forks. It has no other threads, and ends with the test run, by no signal to a test's group."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # in a fork, until it knows which of them are ignored
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hidden = address.with_name("not-yet")
    listener.bind(str(hidden))
    listener.listen(64)
    hidden.rename(address)
    starter = _Starter(listener)
    order = starter.serve()
    starter.close()
    _become(order, str(address.with_name("python")))


def _kill(pid: int) -> None:
    """A fork and what it has started; it may not lead its group yet. Returns when it has ended."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _become(order: _Order, python: str) -> None:
    """Be the command: this process' own past is not to be seen by it, nor that the tests run in the background of a
    shell, which has them ignore Ctrl-C."""
    os.setsid()
    for number in _SIGNALS:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in order.ignored else usual)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for number, stream in enumerate(order.streams):
        os.dup2(stream, number)
        os.close(stream)
    # New ones: those of the process that forked know what kind of files it had.
    sys.stdin = os.fdopen(0, closefd=False)
    unbuffered = order.arguments[0] == "-u"  # torchrun starts its ranks so
    sys.stdout = os.fdopen(1, "w", buffering=1 if unbuffered else -1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    os.environ.setdefault("PYTHON_EXEC", python)  # and by this
    arguments = order.arguments[unbuffered:]
    if arguments[0] == "-m":
        sys.path.insert(0, order.directory)
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        sys.argv = arguments
        runpy.run_path(sys.argv[0], run_name="__main__")
