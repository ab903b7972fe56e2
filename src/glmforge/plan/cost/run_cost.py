"""What a run costs on a machine: its phases' days with failures, GPU-hours, energy, dollars, storage and traffic."""

from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from glmforge.config.schema import RunConfig
from glmforge.plan.cost.goodput import Failures
from glmforge.plan.cost.phase_time import DAY, HOUR, PhaseTime
from glmforge.plan.cost.prices import Price, price_of
from glmforge.plan.cost.settings import CostSettings
from glmforge.plan.cost.storage import Storage, restart_interval, storage_of
from glmforge.plan.machine.collectives import LinkBytes
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.provenance import Provenance, least_sure
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.overheads import INTERVAL

_MONTH = 30 * DAY
_TB = 1e12
_NO_PROGRESS = 1e-3
"""Goodput below which a job makes no useful progress."""


@dataclass(frozen=True)
class PhaseCost:
    """A phase with what failures add to it.

    Attributes:
        seconds: with failures; None if the phase has no undisturbed time.
        goodput: undisturbed time as a share of it.
        best_interval: steps between checkpoints that would lose least.
        best_goodput: with that interval.
        gpu_hours: of all GPUs, with failures.
        kilowatt_hours: of the nodes and what the data centre adds; None if the GPU's power is not known.
        gpu_dollars: None if no price is known.
    """

    time: PhaseTime
    seconds: float | None
    goodput: float
    best_interval: int
    best_goodput: float
    gpu_hours: float
    kilowatt_hours: float | None
    gpu_dollars: float | None


@dataclass(frozen=True)
class RunCost:
    """Of a whole run on `world_size` GPUs. Sums are over the phases that have a time."""

    machine: Machine
    world_size: int
    settings: CostSettings
    price: Price | None
    phases: tuple[PhaseCost, ...]
    failures: Failures
    interval_steps: int
    storage: Storage

    @property
    def seconds(self) -> float:
        """With failures."""
        return sum(phase.seconds or 0.0 for phase in self.phases)

    @property
    def goodput(self) -> float:
        """Undisturbed time as a share of all."""
        return sum(phase.time.seconds or 0.0 for phase in self.phases) / self.seconds if self.seconds else 0.0

    @property
    def gpu_hours(self) -> float:
        return sum(phase.gpu_hours for phase in self.phases)

    @property
    def utilisation(self) -> float:
        """MFU while it trains, failures apart."""
        timed = [phase.time for phase in self.phases if phase.time.seconds]
        peak = self.world_size * self.machine.accelerator.bf16_flops
        seconds = sum(time.seconds or 0.0 for time in timed)
        return sum(time.model_flops for time in timed) / seconds / peak if seconds else 0.0

    @property
    def provenance(self) -> Provenance | None:
        """Of the predicted seconds; None if the utilisation was given."""
        found = [phase.time.provenance for phase in self.phases if phase.time.provenance is not None]
        return least_sure(found) if found else None

    @property
    def kilowatt_hours(self) -> float | None:
        """None if the GPU's power is not known."""
        found = [phase.kilowatt_hours for phase in self.phases if phase.kilowatt_hours is not None]
        return sum(found) if found else None

    @property
    def sent(self) -> dict[str, LinkBytes]:
        """Bytes of all ranks in the whole run by axis, inside nodes and between them."""
        found: dict[str, LinkBytes] = {}
        for phase in self.phases:
            for axis, sent in phase.time.sent.items():
                before = found.get(axis, LinkBytes(0, 0))
                found[axis] = LinkBytes(before.inside + sent.inside, before.outside + sent.outside)
        return found

    @property
    def dollars(self) -> dict[str, float]:
        """By what they are for; without the GPUs if no price is known."""
        settings = self.settings
        items = dict(settings.other_dollars)
        if self.price is not None:
            items["GPUs"] = sum(phase.gpu_dollars or 0.0 for phase in self.phases)
        if settings.dollars_per_kwh and self.kilowatt_hours is not None:
            items["energy"] = self.kilowatt_hours * settings.dollars_per_kwh
        if settings.dollars_per_tb_month:
            terabytes = (self.storage.shared_peak + self.storage.token_shards) / _TB
            items["storage"] = terabytes * self.seconds / _MONTH * settings.dollars_per_tb_month
        return items

    @property
    def dollars_between(self) -> tuple[float, float] | None:
        """What four of five such runs cost, by the spread of predicted steps; None if the utilisation was given."""
        if self.provenance is None or self.machine.cores is not None:
            return None
        fixed = sum(self.settings.other_dollars.values())
        by_time = sum(self.dollars.values()) - fixed
        return fixed + by_time / INTERVAL, fixed + by_time * INTERVAL


def run_cost(
    config: RunConfig,
    world_size: int,
    machine: Machine,
    phases: list[PhaseTime],
    settings: CostSettings,
    stage: TrainingStage = PRETRAINING,
) -> RunCost:
    """`phases` are those of `predicted_phases` or `phases_at`, of the same stage."""
    storage = storage_of(config, stage)
    failures = _failures(config, world_size, machine, storage, settings)
    interval = restart_interval(config.checkpoint, config.num_steps)
    price = price_of(machine.accelerator, settings)
    power = machine.accelerator.power
    added = settings.node_power_factor * settings.power_usage_effectiveness
    rates = _Rates(
        num_gpus=world_size,
        kilowatts=None if power is None else power * added / 1e3,
        dollars=None if price is None else price.dollars_per_gpu_hour,
    )
    return RunCost(
        machine=machine,
        world_size=world_size,
        settings=settings,
        price=price,
        phases=tuple(_phase_cost(phase, failures, interval, rates) for phase in phases),
        failures=failures,
        interval_steps=interval,
        storage=storage,
    )


def _failures(
    config: RunConfig, world_size: int, machine: Machine, storage: Storage, settings: CostSettings
) -> Failures:
    num_nodes = -(-world_size // machine.ranks_per_node)
    transfer = storage.checkpoint / (num_nodes * settings.storage_bytes_per_second)
    staging = storage.checkpoint / world_size / machine.host_link
    in_background = config.checkpoint.background
    return Failures(
        mtbf_seconds=settings.gpu_mtbf_hours * HOUR / world_size,
        restart_seconds=settings.restart_seconds + transfer,
        save_seconds=settings.seconds_per_save + (staging if in_background else transfer),
        write_seconds=transfer if in_background else 0.0,
    )


class _Rates(NamedTuple):
    """Of one GPU, in kilowatts and in dollars per hour."""

    num_gpus: int
    kilowatts: float | None
    dollars: float | None


def _phase_cost(time: PhaseTime, failures: Failures, interval_steps: int, rates: _Rates) -> PhaseCost:
    if time.seconds is None:
        return PhaseCost(time, None, 0.0, interval_steps, 0.0, 0.0, None, None)
    step = time.seconds / time.steps
    goodput = failures.goodput(interval_steps * step)
    best = max(1, round(failures.best_interval() / step))
    best_goodput = failures.goodput(best * step)
    if goodput < _NO_PROGRESS:
        problem = f"fails every {failures.mtbf_seconds:,.0f} s, too often to get from one checkpoint to the next"
        endless = replace(time, seconds=None, problem=problem)
        return PhaseCost(endless, None, 0.0, best, best_goodput, 0.0, None, None)
    seconds = time.seconds / goodput
    hours = rates.num_gpus * seconds / HOUR
    return PhaseCost(
        time=time,
        seconds=seconds,
        goodput=goodput,
        best_interval=best,
        best_goodput=best_goodput,
        gpu_hours=hours,
        kilowatt_hours=None if rates.kilowatts is None else hours * rates.kilowatts,
        gpu_dollars=None if rates.dollars is None else hours * rates.dollars,
    )


def cost_as_json(cost: RunCost) -> dict[str, object]:
    """Everything, ready for JSON; what is not in `given` is assumed."""
    phases = [
        asdict(phase.time)
        | {
            "sent": _sent_as_json(phase.time.sent),
            "seconds_with_failures": phase.seconds,
            "goodput": phase.goodput,
            "best_interval_steps": phase.best_interval,
            "best_goodput": phase.best_goodput,
            "gpu_hours": phase.gpu_hours,
            "kilowatt_hours": phase.kilowatt_hours,
            "gpu_dollars": phase.gpu_dollars,
        }
        for phase in cost.phases
    ]
    return {
        "gpu": cost.machine.accelerator.name,
        "num_gpus": cost.world_size,
        "phases": phases,
        "provenance": cost.provenance,
        "seconds": cost.seconds,
        "goodput": cost.goodput,
        "utilisation": cost.utilisation,
        "gpu_hours": cost.gpu_hours,
        "kilowatt_hours": cost.kilowatt_hours,
        "price": cost.price._asdict() if cost.price else None,
        "dollars": cost.dollars | {"all": sum(cost.dollars.values())},
        "dollars_80": cost.dollars_between,
        "sent": _sent_as_json(cost.sent),
        "failures": asdict(cost.failures),
        "interval_steps": cost.interval_steps,
        "storage": asdict(cost.storage)
        | {"checkpoint": cost.storage.checkpoint, "shared_peak": cost.storage.shared_peak},
        "settings": cost.settings.model_dump(mode="json"),
        "given": sorted(cost.settings.model_fields_set),
    }


def _sent_as_json(sent: dict[str, LinkBytes]) -> dict[str, dict[str, float]]:
    return {axis: {"inside_bytes": size.inside, "outside_bytes": size.outside} for axis, size in sent.items()}
