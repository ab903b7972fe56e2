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
from pathlib import Path

import torch
from torch import Tensor

from glmforge.observe.metrics import Record, make_record
from glmforge.observe.run import record_event
from glmforge.parallel.communication import Traffic
from glmforge.parallel.world import World
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.order import Stage
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

_HOST_BYTES = 64


class StragglerHook(Hook):
    """Compares the ranks on each step whose number `every` divides.

    Args:
        output_dir: the run directory.
        every: steps; `communication` is to measure these.
        ratio: own time over the median from which on a rank is reported as an event.
        communication: the hook, called before this one, that measures what is communicated.
    """

    name = "straggler"
    stage = Stage.MEASURE

    def __init__(self, output_dir: Path, every: int, ratio: float, communication: CommunicationHook) -> None:
        self.root, self.every, self.ratio, self._communication = output_dir, every, ratio, communication
        self._record: Record = {}

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        world, traffic = trainer.world, self._communication.measured
        if world.size == 1 or traffic is None or trainer.state.step % self.every:
            return
        own_R = gather(own_seconds(result.seconds, traffic), world)
        if own_R.isnan().any():
            logger.debug("ranks are not compared: the time of some communication is not known")
            return
        slowest, median = int(own_R.argmax()), float(own_R.quantile(0.5))
        ratio = float(own_R[slowest]) / median if median > 0 else math.inf
        self._record = make_record(straggler_ratio=ratio, slowest_rank=slowest)
        if ratio >= self.ratio:
            host = host_of(slowest, world)
            detail = f"rank {slowest} on {host}: {float(own_R[slowest]):.3f} s of its own, the median is {median:.3f} s"
            if world.is_main:
                logger.warning("straggler: %s", detail)
                record_event(self.root, "straggler", step=trainer.state.step, detail=detail)

    def take_record(self) -> Record:
        """The metrics of the last compared step, once; empty if none was compared since."""
        record, self._record = self._record, {}
        return record


def own_seconds(step_seconds: float, traffic: dict[str, Traffic]) -> float:
    """A rank's step without its communication; NaN if the time of that is not known."""
    waited = sum(math.nan if found.seconds is None else found.seconds for found in traffic.values())
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
