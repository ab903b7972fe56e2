"""The process group of a benchmark: ranks that a launcher started meet, measure, and part.

Meeting is `glmforge.runtime.meeting`'s: whoever does not come, or cannot be reached, is named in one line. The group is
the plain one of all ranks; nothing here knows layouts.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from glmforge.errors import ConfigError, HostError
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
    """Raises `ConfigError` if there is nobody to communicate with."""
    if launch.world_size == 1:
        raise ConfigError(f"one rank has nobody to communicate with: {HOW_TO_START}")


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
    """What is told where communication failed: the rank, what it was doing, and what the library says."""
    said = " ".join(str(error).split("\n")[0].split())
    said = re.sub(r"^\[\S*?/(\w+\.\w+):\d+\]\s*", "", said)[:200] or type(error).__name__
    return HostError(
        f"rank {launch.rank}: {doing} failed: {said}; another rank ended or did not answer in time: see its output, or "
        "give a longer --timeout"
    )
