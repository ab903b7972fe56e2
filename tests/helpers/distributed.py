"""Run a function on N gloo ranks of this machine and get back what each returned.

    def all_reduced(rank_value: float) -> float: ...

    results = run_ranks(all_reduced, 4, 2.5)  # [10.0, 10.0, 10.0, 10.0]

Each rank is its own process with one compute thread and a process group that is already initialised. The
processes are forked from a server which imported torch once, so that a run of four ranks costs a tenth of a
second rather than four imports of torch. A rank that fails fails the call with that rank's traceback, and no
process outlives the call, nor the test run: each rank watches its parent and takes its own children with it.

The environment is torchrun's: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT.
Code that makes its own process group is run with `init_group=False`.
"""

import importlib.util
import itertools
import multiprocessing
import operator
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from helpers.linked_hosts import INTERFACE, LinkedHost

_PRELOADED = ["pytest", "glmforge.recipes.train", "glmforge.dryrun.rank", "glmforge.cli.app", "glmforge.optim.muon"]
"""Imported once by the process that ranks and commands are forked from: four seconds less for each of them."""
_GRACE_S = 3.0  # after one rank has failed: how long the others may take to report their own error
_LOG_TAIL_BYTES = 4000


def fork_server() -> ForkServerContext:
    """What starts processes by forking them from one that has imported what ranks need.

    There is one such process per test process, and whoever comes first says what it imports: a session with tests that
    run ranks starts it before the first of them (`tests/conftest.py`), because a dry run would have it import less.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


class RankFailure(RuntimeError):
    """A rank raised, died or ran past the time limit; the message holds every failed rank's traceback."""


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 120.0,
    init_group: bool = True,
    hosts: Sequence[LinkedHost] = (),
) -> list[Any]:
    """Call `fn(*args)` on `world_size` ranks and return their (picklable) results, rank 0 first.

    `fn` is a module-level function; inside it, `torch.distributed.get_rank()` tells the rank. With `hosts` each of
    them has an equal share of the ranks.
    Raises `RankFailure` with the tracebacks if a rank raises, dies, or is not done after `timeout_s` seconds.
    """
    function = (fn.__module__, sys.modules[fn.__module__].__file__, fn.__qualname__)
    if "<" in fn.__qualname__:
        raise ValueError(f"run_ranks needs a module-level function, not {fn.__qualname__}")
    context = fork_server()
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        payload = (
            function,
            pickle.dumps(args),
            Path(folder),
            world_size,
            free_port(),
            timeout_s,
            init_group,
            hosts,
        )
        ranks = [context.Process(target=_rank_main, args=(rank, *payload)) for rank in range(world_size)]
        try:
            for process in ranks:
                process.start()
            _wait(ranks, timeout_s)
        finally:
            for process in ranks:
                _kill(process)
        _raise_failures(ranks, Path(folder), timeout_s)
        return [pickle.loads((Path(folder) / f"{rank}.result").read_bytes()) for rank in range(world_size)]


def _wait(ranks: Sequence[BaseProcess], timeout_s: float) -> None:
    """Return when all ranks have ended, when the time is up, or shortly after the first failure."""
    deadline = time.monotonic() + timeout_s
    running: dict[Any, BaseProcess] = {process.sentinel: process for process in ranks}
    while running and (left := deadline - time.monotonic()) > 0:
        for sentinel in connection.wait(list(running), timeout=left):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode != 0:
                deadline = min(deadline, time.monotonic() + _GRACE_S)


def _kill(process: BaseProcess) -> None:
    if process.pid is None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the rank leads a group that holds its own children
    process.kill()  # in case it has not come to leading one
    process.join()


def _raise_failures(ranks: Sequence[BaseProcess], folder: Path, timeout_s: float) -> None:
    failed = [rank for rank in range(len(ranks)) if not (folder / f"{rank}.result").exists()]
    if not failed:
        return
    # The earliest error is the cause; later ones are usually the peers' broken connections.
    failed.sort(key=lambda rank: _modified(folder / f"{rank}.error"))
    raise RankFailure("\n".join(_describe(rank, ranks[rank].exitcode, folder, timeout_s) for rank in failed))


def _describe(rank: int, exitcode: int | None, folder: Path, timeout_s: float) -> str:
    error = folder / f"{rank}.error"
    if error.exists():
        return f"rank {rank} raised\n{error.read_text()}"
    log = folder / f"{rank}.log"
    tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
    return f"rank {rank} ended with code {exitcode} without a result (limit {timeout_s:g} s)\n{tail}"


def _modified(path: Path) -> float:
    return path.stat().st_mtime_ns if path.exists() else float("inf")


_PORTS = range(15_000, 32_000)
_tried = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel lends to connections: none of these can take it before
    a server binds it. Each process begins elsewhere, and gives no port twice in a row of many."""
    for number in itertools.islice(_tried, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 15,000 to 32,000 is free on 127.0.0.1")


def _rank_main(
    rank: int,
    function: tuple[str, str, str],
    pickled_args: bytes,
    folder: Path,
    world_size: int,
    port: int,
    timeout_s: float,
    init_group: bool,
    hosts: Sequence[LinkedHost],
) -> None:
    """One rank's process: writes `<rank>.result` or `<rank>.error`, and `<rank>.log` with all it printed."""
    os.setsid()
    enter_host(rank, world_size, hosts)
    threading.Thread(target=die_with_parent, daemon=True).start()
    redirect_output(folder / f"{rank}.log")
    try:
        set_environment(rank, world_size, port, hosts)
        if init_group:
            _init_group(rank, world_size, folder / "store", timeout_s)
        fn = _load_function(*function)
        result = pickle.dumps(fn(*pickle.loads(pickled_args)))
    except BaseException:  # noqa: BLE001 - reported to the parent, whatever it is
        partial = folder / f"{rank}.partial"
        partial.write_text(traceback.format_exc())
        partial.rename(folder / f"{rank}.error")
        os._exit(1)
    (folder / f"{rank}.result").write_bytes(result)
    _leave_group()
    os._exit(0)  # skips the teardown of threads that a test may have left


def die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.killpg(0, signal.SIGKILL)


def redirect_output(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def enter_host(rank: int, world_size: int, hosts: Sequence[LinkedHost]) -> None:
    """Become a process of the rank's host. Before the process has other threads."""
    if hosts:
        hosts[rank * len(hosts) // world_size].enter()


def set_environment(rank: int, world_size: int, port: int, hosts: Sequence[LinkedHost] = ()) -> None:
    import torch

    local_world_size = world_size // max(1, len(hosts))
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_world_size),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "MASTER_ADDR": hosts[0].address if hosts else "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": INTERFACE if hosts else "lo",
        "OMP_NUM_THREADS": "1",
    }
    torch.set_num_threads(1)


def _init_group(rank: int, world_size: int, store: Path, timeout_s: float) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
    )


def _leave_group() -> None:
    """Wait for the peers before closing the connections, which they may still be reading from."""
    import torch.distributed as dist

    if dist.is_initialized():
        with suppress(RuntimeError):  # a peer has failed and reports why itself
            dist.barrier()


def _load_function(module_name: str, file: str, qualname: str) -> Callable[..., Any]:
    """Import the function's module from its file: test files are on no import path."""
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function: Callable[..., Any] = operator.attrgetter(qualname)(sys.modules[module_name])
    return function
