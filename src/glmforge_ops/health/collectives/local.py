"""Ranks on this machine without a launcher: so many processes, told of each other as torchrun would tell them."""

import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

from glmforge.errors import GlmforgeError, HostError
from glmforge.files import escaped
from glmforge.runtime.waiting import STEP_S

_GRACE_S = 10.0
"""How long the other ranks may take to end once one has failed."""


def run_local(num_ranks: int, function: Callable[..., int], *args: Any) -> int:
    """Call `function(*args)` in `num_ranks` processes and return rank 0's result, an exit status.

    Only rank 0 should print. Raises `HostError` with the line of the rank that failed first.
    """
    context = multiprocessing.get_context("spawn")
    failures: SimpleQueue[str] = context.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks: list[BaseProcess] = [
        context.Process(target=_rank_main, args=(rank, num_ranks, port, failures, function, args), daemon=True)
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    try:
        _wait(ranks)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    if not failures.empty():
        raise HostError(failures.get())
    for rank, process in enumerate(ranks):
        code = process.exitcode or 0
        if code < 0:
            raise HostError(f"rank {rank} was ended by {signal.Signals(-code).name}: see whether memory ran out")
        if code and rank:
            raise HostError(f"rank {rank} ended with status {code}: see what it said above")
    return ranks[0].exitcode or 0


def _wait(ranks: list[BaseProcess]) -> None:
    """Until all have ended, or some seconds after the first has failed. Rank 0's status is its result."""
    running: dict[Any, BaseProcess] = {process.sentinel: process for process in ranks}
    deadline = math.inf
    while running:
        ended = connection.wait(list(running), timeout=STEP_S)
        if not ended and time.monotonic() > deadline:
            return
        for sentinel in ended:
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                deadline = min(deadline, time.monotonic() + _GRACE_S)


def _rank_main(
    rank: int, size: int, port: int, failures: "SimpleQueue[str]", function: Callable[..., int], args: tuple[Any, ...]
) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    # This machine's name may lead to an address that it does not have.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        status = function(*args)
    except GlmforgeError as error:
        failures.put(escaped(str(error)))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the teardown of a broken process group may not come to an end
