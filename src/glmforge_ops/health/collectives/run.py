"""A benchmark or a search from the launcher's variables to its result; what the command line calls on each rank."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from glmforge.errors import ConfigError
from glmforge.runtime.launch import LaunchEnvironment
from glmforge_ops.health.collectives.joined import check_ranks, choose_backend, device_of, joined, lost
from glmforge_ops.health.collectives.measure import measure_all
from glmforge_ops.health.collectives.nccl_tests import find_program, run_nccl_tests
from glmforge_ops.health.collectives.operations import Place
from glmforge_ops.health.collectives.rows import Row
from glmforge_ops.health.collectives.settings import BenchSettings, SlowSettings
from glmforge_ops.health.collectives.slow.drive import Outcome, RoundDone, find_slow

__all__ = ["choose_backend", "run_bench", "run_find_slow", "run_with_nccl_tests"]


def run_bench(settings: BenchSettings, done: Callable[[Row], None]) -> tuple[list[Row], int]:
    """The rows of all ranks together, and how many ranks there are. `done` is told each row on rank 0.

    Raises `ConfigError`, `MeetingError` and `HostError`.
    """
    launch = LaunchEnvironment.read()
    check_ranks(launch)
    device = device_of(launch, settings.backend)
    with joined(launch, settings.backend, device, timeout_s=settings.timeout_s, connect_at_once=True):
        place = Place(dist.get_rank(), dist.get_world_size(), device)
        try:
            rows = measure_all(settings, place, done if launch.is_main else lambda row: None)
        except RuntimeError as error:  # gloo's, NCCL's and the store's
            raise lost(launch, "a collective", error) from error
    return rows, launch.world_size


def run_find_slow(settings: SlowSettings, done: Callable[[RoundDone], None]) -> Outcome:
    """Search for slow hosts and paths; `done` is told each round on rank 0.

    Raises `ConfigError`, `MeetingError` and `HostError`.
    """
    launch = LaunchEnvironment.read()
    check_ranks(launch)
    device = device_of(launch, settings.backend)
    with joined(launch, settings.backend, device, timeout_s=settings.timeout_s, connect_at_once=False) as store:
        return find_slow(settings, launch, store, device, done)


def run_with_nccl_tests(
    settings: BenchSettings, wanted: str, num_ranks: int | None, done: Callable[[Row], None]
) -> tuple[list[Row], int] | None:
    """The rows as `run_bench`, measured by nccl-tests on this machine's GPUs; None where it is not to be used.

    Args:
        wanted: "never"; "auto": if it has a program for every collective that is asked for; "require".
        num_ranks: GPUs to use; None is all.

    Raises `ConfigError` if it is required and cannot be used, and `HostError`.
    """
    if wanted == "never":
        return None
    if settings.backend != "nccl" or LaunchEnvironment.read().world_size > 1:
        if wanted == "require":
            raise ConfigError(
                "--nccl-tests require: nccl-tests is used for NCCL on the GPUs of one machine, by one process; start "
                "it without torchrun and srun, with --backend nccl"
            )
        return None
    if wanted == "auto" and not all(find_program(kind) for kind in settings.kinds):
        return None
    num_gpus = num_ranks or torch.cuda.device_count()
    rows: list[Row] = []
    for kind in settings.kinds:
        found = run_nccl_tests(kind, settings, num_gpus)
        for row in found:
            done(row)
        rows += found
    return rows, num_gpus
