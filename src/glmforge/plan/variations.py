"""What a plan would be with other GPUs, another network or another batch: the cells of the page's form.

Each cell is planned as any run is (`predict_step`), so a page that shows it computes nothing of its own. More GPUs are
more data ranks; pp, cp, tp and ep stay, and so do micro-batches unless there are too few sequences for them.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.machine.network import Network, find_network
from glmforge.plan.memory.estimate import MemoryModel
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.step_time import StepTime, predict_step

GPUS = ("A100 SXM 80GB", "H800 SXM", "H100 SXM", "H200 SXM", "B200")
NETWORKS = ("tcp30", "tcp100", "roce200", "ib200", "ib400", "ib800")
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_BATCH_FACTORS = (0.5, 1.0, 2.0)


class Variation(NamedTuple):
    """A plan that differs from the one that was requested.

    Attributes:
        step: None where `reason` says why it cannot be.
        peak: bytes of the fullest rank by closed forms, 0 without a layout.
    """

    num_gpus: int
    machine: Machine
    batch_size: int
    step: StepTime | None
    peak: int
    reason: str

    @property
    def choice(self) -> tuple[str, int, str, int]:
        """What is chosen: GPU, number of them, network, sequences of a batch."""
        return self.machine.accelerator.name, self.num_gpus, self.machine.network.name, self.batch_size


def vary(
    config: RunConfig, layout: Layout, machine: Machine, stage: TrainingStage = PRETRAINING
) -> Iterator[Variation]:
    """All combinations around a plan of `stage` in the only phase of `config`, itself among them."""
    memory, machines = MemoryModel(config, stage), list(_machines(machine))
    numbers = _scaled(layout.world_size, _FACTORS)
    for num_gpus, batch_size in product(numbers, _scaled(config.phases[0].batch_size, _BATCH_FACTORS)):
        varied = _with(config, layout, num_gpus, batch_size)
        try:
            found = resolve_layout(varied, num_gpus)
        except ConfigError as error:
            for other in machines:
                yield Variation(num_gpus, other, batch_size, None, 0, str(error))
            continue
        peak = memory.estimate(varied, found).peak
        for other in machines:
            step, reason = _planned(varied, found, other, stage)
            yield Variation(num_gpus, other, batch_size, step, peak, reason)


def _machines(machine: Machine) -> Iterator[Machine]:
    """The machine's own kind of GPU and the usual ones, slowest first, on every network.

    What was measured of collectives holds for the machine itself alone.
    """
    own = machine.accelerator
    gpus = {row.name: row for row in (*(find_machine(name).accelerator for name in GPUS), own)}
    for gpu in sorted(gpus.values(), key=lambda row: (row.bf16_flops, row.memory_bandwidth)):
        for network in _networks(machine):
            if (gpu, network) == (own, machine.network):
                yield machine
            else:
                cores = machine.cores if gpu == own else None
                yield replace(machine, accelerator=gpu, network=network, collectives=(), cores=cores)


def _networks(machine: Machine) -> list[Network]:
    found = {machine.network.name: machine.network} | {name: find_network(name) for name in NETWORKS}
    return sorted(found.values(), key=lambda network: network.bandwidth_per_rank(machine.ranks_per_node))


def _scaled(value: int, factors: tuple[float, ...]) -> list[int]:
    return sorted({int(value * factor) for factor in factors if (value * factor).is_integer()} | {value})


def _with(config: RunConfig, layout: Layout, num_gpus: int, batch_size: int) -> RunConfig:
    """The same axes but for data ranks; micro-batches are smaller where they would not divide a rank's share."""
    phase = config.phases[0].model_copy(update={"batch_size": batch_size, "batch_ramp": None})
    share = batch_size * layout.pp * layout.cp * layout.tp // num_gpus
    micro = math.gcd(layout.micro_batch_size, share) if layout.micro_batch_size and share else layout.micro_batch_size
    parallel = config.parallel.model_copy(update={"dp_shard": "auto", "micro_batch_size": micro})
    return config.model_copy(update={"phases": [phase], "parallel": parallel})


def _planned(config: RunConfig, layout: Layout, machine: Machine, stage: TrainingStage) -> tuple[StepTime | None, str]:
    try:
        return predict_step(config, layout, machine, stage=stage), ""
    except ConfigError as error:
        return None, str(error)
