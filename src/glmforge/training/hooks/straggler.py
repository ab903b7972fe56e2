"""Find the rank that all others wait for.

In a synchronous step every rank takes equally long, the slow one by working and the others by waiting for it. A rank's
own time is the step without what it spent in collectives, where the waiting is: data, kernels, the host's Python. What
is communicated behind computation is taken for waiting too, so the ratio is an upper bound; which rank is slowest does
not depend on it.

Shape: R ranks.
"""

import logging
import math
import socket
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from glmforge.parallel.communication import COMMUNICATION_AXES
from glmforge.parallel.world import World
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_HOST_BYTES = 64


class StragglerHook(Hook):
    """Compares the ranks on each step whose number `every` divides.

    Args:
        every: steps; those whose communication is recorded are compared.
        ratio: own time over the median from which on a rank is reported as an event.
    """

    name = "straggler"
    priority = Priority.MEASURE
    after = ("communication",)

    def __init__(self, every: int, ratio: float) -> None:
        self.every, self.ratio = every, ratio

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        world = trainer.world
        if world.size == 1 or trainer.state.step % self.every:
            return
        recorded = trainer.bus.recorded_after(trainer.state.step)
        if not any(name.startswith("comm_") for name in recorded):  # as while a profile is being taken
            return
        own_R = gather(own_seconds(result.seconds, recorded), world)
        if own_R.isnan().any():
            logger.debug("cannot compare ranks: some communication was not timed")
            return
        slowest, median = int(own_R.argmax()), float(own_R.quantile(0.5))
        ratio = float(own_R[slowest]) / median if median > 0 else math.inf
        trainer.record(straggler_ratio=ratio, slowest_rank=slowest)
        if ratio >= self.ratio:
            host = host_of(slowest, world)
            detail = f"rank {slowest} on {host}: {float(own_R[slowest]):.3f} s of compute time, median {median:.3f} s"
            if world.is_main:
                logger.warning("straggler: %s", detail)
            trainer.event("straggler", detail)


def own_seconds(step_seconds: float, recorded: Mapping[str, Any]) -> float:
    """A rank's step without its communication (the metrics `comm_*`); NaN if the time of that is not known."""
    axes = [axis for axis in COMMUNICATION_AXES if recorded.get(f"comm_bytes_{axis}") is not None]
    seconds = [recorded.get(f"comm_seconds_{axis}") for axis in axes]
    waited = sum(math.nan if one is None else one for one in seconds)
    # Times of axes may overlap, and then their sum is more than the step.
    return waited if math.isnan(waited) else max(0.0, step_seconds - waited)


def gather(value: float, world: World) -> Tensor:
    """float64 [R] on the host: the value of each rank. All ranks call this together."""
    values_R = torch.zeros(world.size, dtype=torch.float64, device=world.device)
    values_R[world.rank] = value
    return world.sum(values_R).cpu()


def host_of(rank: int, world: World) -> str:
    """The name of the machine that a rank runs on. All ranks call this together."""
    letters = torch.zeros(_HOST_BYTES, dtype=torch.int64)
    if world.rank == rank:
        name = socket.gethostname().encode()[:_HOST_BYTES]
        letters[: len(name)] = torch.tensor(list(name))
    return bytes(world.sum(letters.to(world.device)).tolist()).rstrip(b"\0").decode(errors="replace")
