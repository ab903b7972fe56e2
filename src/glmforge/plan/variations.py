"""What a plan would be with other GPUs, another network or another batch: the cells of the page's form.

Each cell is planned as any run is (`predict_step`), so a page that shows it computes nothing of its own. More GPUs are
more data ranks; pp, cp, tp and ep stay, and so do micro-batches unless there are too few sequences for them.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.machine.network import Network, find_network
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.step_time import StepTime, predict_step

GPUS = ("A100 SXM 80GB", "H800 SXM", "H100 SXM", "H200 SXM", "B200")
NETWORKS = ("tcp30", "tcp100", "roce200", "ib200", "ib400", "ib800")
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_BATCH_FACTORS = (0.5, 1.0, 2.0)


class Variation(NamedTuple):
    """A plan that differs from the one that was asked for; `step` is None where `reason` says why it cannot be."""

    num_gpus: int
    gpu: str
    network: str
    batch_size: int
    step: StepTime | None
    reason: str


def vary(
    config: RunConfig, layout: Layout, machine: Machine, stage: TrainingStage = PRETRAINING
) -> Iterator[Variation]:
    """All combinations around a plan of `stage` in the only phase of `config`, itself among them."""
    machines = [
        Machine(other.accelerator, network, machine.ranks_per_node)
        for other in _gpus(machine)
        for network in _networks(machine)
    ]
    numbers = _scaled(layout.world_size, _FACTORS)
    for num_gpus, batch_size in product(numbers, _scaled(config.phases[0].batch_size, _BATCH_FACTORS)):
        varied = _with(config, layout, num_gpus, batch_size)
        for other in machines:
            step, reason = _planned(varied, num_gpus, other, stage)
            yield Variation(num_gpus, other.accelerator.name, other.network.name, batch_size, step, reason)


def _gpus(machine: Machine) -> list[Machine]:
    """The usual ones and the machine's own, slowest first."""
    found = {machine.accelerator.name: machine} | {name: find_machine(name) for name in GPUS}
    return sorted(found.values(), key=lambda other: (other.accelerator.bf16_flops, other.accelerator.memory_bandwidth))


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


def _planned(config: RunConfig, num_gpus: int, machine: Machine, stage: TrainingStage) -> tuple[StepTime | None, str]:
    try:
        return predict_step(config, resolve_layout(config, num_gpus), machine, stage=stage), ""
    except ConfigError as error:
        return None, str(error)
