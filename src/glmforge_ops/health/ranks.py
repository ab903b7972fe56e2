"""The process group of a measurement: ranks of a launcher, or processes started here, meet, measure and part.

`glmforge.runtime.meeting` names a rank that does not come, or cannot be reached, in one line. The group is the plain
one of all ranks.
"""

import logging
import multiprocessing
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.queues import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, start_processes

from glmforge.errors import ConfigError, GlmforgeError, HostError
from glmforge.files import escaped
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.meeting import open_store, roll_call


def choose_backend(asked: str) -> str:
    """ "nccl" or "gloo", where `asked` may be "auto" as well. Raises `ConfigError` for NCCL without a GPU."""
    has_gpu = torch.cuda.is_available()
    if asked == "nccl" and not has_gpu:
        raise ConfigError("--backend nccl: torch finds no GPU here; give --backend gloo, or use a node with GPUs")
    return asked if asked != "auto" else "nccl" if has_gpu else "gloo"


def device_of(launch: LaunchEnvironment, backend: str) -> torch.device:
    """Where this rank's buffers lie. Raises `ConfigError` for a single rank, or more ranks than GPUs on the node."""
    if launch.world_size == 1:
        raise ConfigError(
            "one rank cannot communicate: give --local N for N ranks on this machine, or start it with 'torchrun "
            "--nproc-per-node N -m glmforge cluster bench' or 'srun --ntasks N glmforge cluster bench'"
        )
    if backend != "nccl":
        return torch.device("cpu")
    found, sees_one = torch.cuda.device_count(), "CUDA_VISIBLE_DEVICES" in os.environ
    index = 0 if found == 1 and sees_one else launch.local_rank  # a launcher may show each process its own GPU only
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
            not end the others' processes either: NCCL's watchdog is switched off.

    Raises `MeetingError`, and `HostError` if communication fails.
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
        yield store
    except RuntimeError as error:  # gloo's, NCCL's and the store's
        said = re.sub(r"^\[\S*?/(\w+\.\w+):\d+\]\s*", "", " ".join(str(error).split("\n")[0].split()))[:200]
        raise HostError(
            f"rank {launch.rank}: communication failed: {said or type(error).__name__}; another rank ended or did not "
            "answer in time: see its output, or give a longer --timeout"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def run_local(num_ranks: int, function: Callable[..., int], *args: Any) -> int:
    """Call `function(*args)` in `num_ranks` processes of this machine; returns rank 0's result, an exit status.

    Only rank 0 should print. Raises `HostError` with the line of the rank that failed first.
    """
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)  # it reports every process that it ends
    failures: SimpleQueue[str] = multiprocessing.get_context("spawn").SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        start_processes(_rank_main, (num_ranks, port, failures, function, args), num_ranks, start_method="spawn")
    except ProcessExitedException as error:
        if error.signal_name is not None:
            rank, signal = error.error_index, error.signal_name
            raise HostError(f"rank {rank} was killed by {signal}: check whether memory ran out") from None
        if not failures.empty():
            raise HostError(failures.get()) from None
        return error.exit_code
    return 0


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
