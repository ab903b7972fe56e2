"""The process group of a measurement: ranks of a launcher, or processes started here, meet, measure and part.

`glmforge.runtime.meeting` names a rank that does not come, or cannot be reached, in one line. The group is the plain
one of all ranks.
"""

import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge.files import escaped
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.meeting import open_store, roll_call

HOW_TO_START = (
    "give --local N for N ranks on this machine, or start it with 'torchrun --nproc-per-node N -m glmforge cluster "
    "bench' or 'srun --ntasks N glmforge cluster bench'"
)


def choose_backend(asked: str) -> str:
    """ "nccl" or "gloo", where `asked` may be "auto" as well. Raises `ConfigError` for NCCL without a GPU."""
    has_gpu = torch.cuda.is_available()
    if asked == "auto":
        return "nccl" if has_gpu else "gloo"
    if asked == "nccl" and not has_gpu:
        raise ConfigError("--backend nccl: torch finds no GPU here; give --backend gloo, or use a node with GPUs")
    if asked == "nccl" and not dist.is_nccl_available():
        raise ConfigError("--backend nccl: this torch was built without NCCL; install torch's CUDA build")
    return asked


def check_ranks(launch: LaunchEnvironment) -> None:
    """Raises `ConfigError` for a single rank."""
    if launch.world_size == 1:
        raise ConfigError(f"one rank cannot communicate: {HOW_TO_START}")


def device_of(launch: LaunchEnvironment, backend: str) -> torch.device:
    """Where this rank's buffers lie. Raises `ConfigError` if the node has more ranks than GPUs."""
    if backend != "nccl":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found == 1 and launch.local_world_size > 1 and "CUDA_VISIBLE_DEVICES" not in os.environ:
        raise ConfigError(f"this node has 1 GPU for {launch.local_world_size} ranks: start one rank for each GPU")
    index = launch.local_rank if found > 1 else 0  # a launcher may show each process its own GPU only
    if index >= found:
        raise ConfigError(f"this node has {found} GPUs, none for local rank {index}: start one rank for each GPU")
    return torch.device("cuda", index)


@contextmanager
def joined(
    launch: LaunchEnvironment, backend: str, device: torch.device, *, timeout_s: float, connect_at_once: bool
) -> Iterator[dist.Store]:
    """The job's store, while all ranks have a process group.

    Args:
        timeout_s: for the ranks to meet, and of a collective.
        connect_at_once: let NCCL connect all ranks now rather than in the first collective. Without, a lost rank does
            not end the others' processes either: NCCL's watchdog is told not to.

    Raises `MeetingError` and `HostError`.
    """
    store = open_store(launch, wait_s=timeout_s, timeout_s=timeout_s)
    roll_call(store, launch, lambda: {"torch": torch.__version__}, wait_s=timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if not connect_at_once:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    try:
        dist.init_process_group(
            backend,
            store=store,
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device if device.type == "cuda" and connect_at_once else None,
        )
    except RuntimeError as error:
        raise lost(launch, "connecting to the other ranks", error) from error
    try:
        yield store
    finally:
        dist.destroy_process_group()


def lost(launch: LaunchEnvironment, doing: str, error: BaseException) -> HostError:
    """Communication failed: the rank, what it was doing, and what the library says."""
    said = " ".join(str(error).split("\n")[0].split())
    said = re.sub(r"^\[\S*?/(\w+\.\w+):\d+\]\s*", "", said)[:200] or type(error).__name__
    return HostError(
        f"rank {launch.rank}: {doing} failed: {said}; another rank ended or did not answer in time: see its output, or "
        "give a longer --timeout"
    )


_GRACE_S = 10.0
"""How long the other ranks may take to end once one has failed."""


def run_local(num_ranks: int, function: Callable[..., int], *args: Any) -> int:
    """Call `function(*args)` in `num_ranks` processes of this machine; returns rank 0's result, an exit status.

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
            raise HostError(f"rank {rank} was killed by {signal.Signals(-code).name}: check whether memory ran out")
        if code and rank:
            raise HostError(f"rank {rank} ended with status {code}: see its output above")
    return ranks[0].exitcode or 0


def _wait(ranks: list[BaseProcess]) -> None:
    """Until all have ended, or some seconds after the first has failed."""
    running: dict[Any, BaseProcess] = {process.sentinel: process for process in ranks}
    deadline = math.inf
    while running and time.monotonic() < deadline:
        for sentinel in connection.wait(list(running), timeout=None if deadline == math.inf else 1.0):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:
                deadline = min(deadline, time.monotonic() + _GRACE_S)


def _rank_main(
    rank: int, size: int, port: int, failures: "SimpleQueue[str]", function: Callable[..., int], args: tuple[Any, ...]
) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    # This machine's name may resolve to an address that it does not have.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        status = function(*args)
    except GlmforgeError as error:
        failures.put(escaped(str(error)))
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the teardown of a broken process group may not end
