"""Calls of functions in processes that can be killed: what judges a model's replies may hang, crash or eat the memory.

A signal's alarm works in the main thread only and does not interrupt C code, and a thread cannot be ended at all. So a
call happens in another process: a command (`python -m glmforge.verify.pool`), not a fork, because the caller
may have threads and a GPU. It gets the name of a function and its arguments as JSON over a socket, and answers in JSON.
A worker that takes too long, ends or outgrows its memory is killed and replaced; the outcome of its call says so, and
no other call is lost.

The clock of a call starts when its worker begins it: neither waiting for a worker nor its start nor the import of the
function's module count. What a call prints goes to stderr, or from the sandbox nowhere. Workers end with the process
that started them, also if it is killed (`PR_SET_PDEATHSIG`), and are process groups, so a call's children end with its
worker.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from glmforge.runtime.waiting import as_done, result_of
from glmforge.verify.sandbox import sandboxed

TIMEOUT_S = 30.0
MEMORY_BYTES = 4 << 30
"""Address space of a worker: libraries reserve more than they use."""

_START_S = 120.0
"""For a worker to start and to import the function's module, on a busy machine."""
_MAX_CALLS = 1000
"""After which a worker is replaced: libraries for symbolic mathematics keep what they computed."""
_MAX_BYTES = 16 << 20
"""Of an answer."""
_MAX_MESSAGE = 300
_MAX_PROCESSES = 64
_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ONE_THREAD = [part for name in _THREADS for part in ("--setenv", name, "1")]


@dataclass(frozen=True)
class Outcome:
    """What a call returned, or why it returned nothing: "timeout", "crash", or "error: " and the exception."""

    value: Any = None
    failed: str = ""


class Pool:
    """Calls functions on up to `num_processes` workers, which start when they are needed; a context manager.

    It may be used from several threads.

    Args:
        timeout_s: of one call.
        memory_bytes: address space of a worker.
        packages: run the workers in the sandbox of `verify.sandbox`, with these directories of packages, and with
            nothing else of the user's: for functions that may be made to execute what a reply says.

    Raises:
        GlmforgeError: there is no sandbox.
    """

    def __init__(
        self,
        num_processes: int = 1,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
        packages: Sequence[Path] | None = None,
    ) -> None:
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._sandbox = None if packages is None else [*sandboxed(packages), *_ONE_THREAD]
        # A worker dies with the thread that started it, as the kernel counts parents: these live as long as the pool.
        self._threads = ThreadPoolExecutor(num_processes, thread_name_prefix="verify-pool")
        self._workers: dict[int, _Worker] = {}  # by thread
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, function: str, *arguments: Any) -> Future[Outcome]:
        """Call `function`, "module:name", with arguments that JSON can express; its result likewise."""
        return self._threads.submit(self._call, function, json.dumps(arguments))

    def map(self, function: str, calls: Iterable[tuple[Any, ...]]) -> Iterator[Outcome]:
        """The outcome of each call, given by its arguments, in order."""
        futures = [self.submit(function, *arguments) for arguments in calls]
        try:
            yield from map(result_of, futures)
        finally:
            _cancel(futures)

    def as_completed(self, function: str, calls: Iterable[tuple[Any, ...]]) -> Iterator[tuple[int, Outcome]]:
        """The number and the outcome of each call, when it is done."""
        numbers = {self.submit(function, *arguments): number for number, arguments in enumerate(calls)}
        try:
            for future in as_done(numbers):
                yield numbers[future], future.result()
        finally:
            _cancel(numbers)

    def close(self) -> None:
        """Kill the workers: calls under way come out as "crash", those that wait are cancelled."""
        with self._lock:
            self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in list(self._workers.values()):
            worker.kill()
        self._threads.shutdown()

    def _call(self, function: str, arguments: str) -> Outcome:
        worker = self._worker()
        outcome = worker.call(function, arguments, self._timeout_s) if worker else Outcome(failed="crash")
        if worker and (worker.is_dead or worker.num_calls >= _MAX_CALLS):
            worker.kill()
            del self._workers[threading.get_ident()]
        return outcome

    def _worker(self) -> "_Worker | None":
        """This thread's; None if the pool is closed."""
        me = threading.get_ident()
        with self._lock:
            if self._is_closed:
                return None
            if me not in self._workers:
                self._workers[me] = _Worker(self._memory_bytes, self._sandbox)
            return self._workers[me]


def is_callable(name: str) -> bool:
    """Whether 'module:function' is one, for a worker to say what workers can import. Raises what the import raises."""
    module, _, function = name.partition(":")
    return callable(getattr(importlib.import_module(module), function))


def _cancel(futures: Iterable[Future[Outcome]]) -> None:
    """What has not begun, where its caller has gone."""
    for future in futures:
        future.cancel()


class _Worker:
    """The other end of the socket, which one thread uses at a time; `kill` may come from any."""

    def __init__(self, memory_bytes: int, sandbox: list[str] | None) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            # In the sandbox process ids are others, and the sandbox ends with its parent by itself.
            numbers = theirs.fileno(), os.getpid() if sandbox is None else 0, memory_bytes
            self._process = subprocess.Popen(
                [*(sandbox or ()), sys.executable, "-m", __name__, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=2 if sandbox is None else subprocess.DEVNULL,
                stderr=None if sandbox is None else subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **dict.fromkeys(_THREADS, "1"), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": _path()},
                start_new_session=True,
            )
        self._received = bytearray()
        self._lock = threading.Lock()
        self.num_calls, self.is_dead = 0, False

    def call(self, function: str, arguments: str, timeout_s: float) -> Outcome:
        self.num_calls += 1
        try:
            self._socket.settimeout(_START_S)
            self._socket.sendall(f"[{self.num_calls}, {json.dumps(function)}, {arguments}]\n".encode())
            answer = self._receive(_START_S)
            if answer == [self.num_calls]:  # it begins
                answer = self._receive(timeout_s)
            number, value, failed = answer
            if number == self.num_calls:
                return Outcome(value, failed)
        except TimeoutError:
            self.is_dead = True
            return Outcome(failed="timeout")
        except (OSError, ValueError, TypeError, RecursionError):  # it ended, or says what no worker says
            pass
        self.is_dead = True
        return Outcome(failed="crash")

    def _receive(self, timeout_s: float) -> Any:
        """Its next line."""
        end = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            part = self._socket.recv(1 << 16)
            if not part or len(self._received) > _MAX_BYTES:
                raise ConnectionError
            self._received += part
        line, _, rest = self._received.partition(b"\n")
        self._received = bytearray(rest)
        return json.loads(line)

    def kill(self) -> None:
        """End it and the processes it started, and wait for its end."""
        with self._lock:
            self.is_dead = True
            if self._process.returncode is None:  # else its id may be another's
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            self._socket.close()


def _path() -> str:
    """Where this process finds its modules: a worker finds the same."""
    return os.pathsep.join(filter(None, sys.path))


def _serve(channel: socket.socket) -> None:
    """In the worker: make the calls that come, a line each, until no more do."""
    me = os.getpid()
    for line in channel.makefile("rb"):
        number, name, arguments = json.loads(line)
        answer = _answer(channel, number, name, arguments)
        if os.getpid() != me:  # the call forked, and this is the child
            os._exit(0)
        channel.sendall(answer.encode() + b"\n")


def _answer(channel: socket.socket, number: int, name: str, arguments: list[Any]) -> str:
    try:
        module, _, function = name.partition(":")
        call = getattr(importlib.import_module(module), function)
        channel.sendall(b"[%d]\n" % number)
        return json.dumps([number, call(*arguments), ""])
    except MemoryError:
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - any may be a verifier's
        words = " ".join(f"{type(error).__name__}: {error}".split())
        return json.dumps([number, None, f"error: {words[:_MAX_MESSAGE]}"])


def _main(descriptor: int, parent: int, memory_bytes: int) -> None:
    """`parent` is 0 in the sandbox."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it died before
        return
    if not parent:
        resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_PROCESSES, _MAX_PROCESSES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=descriptor) as channel, suppress(BrokenPipeError, ConnectionResetError):
        _serve(channel)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
