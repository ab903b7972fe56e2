"""The operations of a step with their limits and what is expected of them on a device, as rows for tables and JSON."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.expected import expected_seconds
from glmforge.plan.time.reached import IMPLEMENTATIONS, LEVERS, Implementation
from glmforge.plan.time.roofline import work_limit
from glmforge.plan.work.operations import Direction, Kind, Operation
from glmforge.plan.work.step import model_flops, step_operations
from glmforge.plan.work.traffic import Traffic, step_traffic


@dataclass
class Cost:
    """Of a step: FLOPs, least bytes, and with a device the least seconds and the expected ones."""

    flops: float = 0.0
    bytes: float = 0.0
    limit: float = 0.0
    expected: dict[Implementation, float] = field(default_factory=lambda: dict.fromkeys(IMPLEMENTATIONS, 0.0))

    def add(self, other: "Cost") -> None:
        self.flops += other.flops
        self.bytes += other.bytes
        self.limit += other.limit
        for name in IMPLEMENTATIONS:
            self.expected[name] += other.expected[name]


@dataclass
class Row:
    """All operations of one name."""

    name: str
    kind: Kind
    is_update: bool
    forward: Cost = field(default_factory=Cost)
    backward: Cost = field(default_factory=Cost)

    @property
    def total(self) -> Cost:
        return total([self.forward, self.backward])

    @property
    def lever(self) -> str | None:
        """What would make it faster after Triton's kernels; None if nothing is known to be left."""
        return LEVERS[self.name].words if self.name in LEVERS else None

    @property
    def gain(self) -> float:
        """Seconds that the lever should save."""
        return self.total.expected["triton"] * (1 - LEVERS[self.name].remains) if self.name in LEVERS else 0.0


@dataclass(frozen=True)
class Ledger:
    """A step of one rank. Without a device (`accelerator` None) there are no seconds, and those of the rows are 0."""

    accelerator: Accelerator | None
    tokens: float
    model_flops: float
    rows: list[Row]
    traffic: list[Traffic]

    @property
    def total(self) -> Cost:
        return total(row.total for row in self.rows)

    @property
    def update(self) -> Cost:
        """What is done once a step."""
        return total(row.total for row in self.rows if row.is_update)

    def utilisation(self, seconds: float) -> float:
        """The model's FLOPs in this many seconds as a share of the bf16 peak."""
        assert self.accelerator is not None, "a peak needs a device"
        return self.model_flops / seconds / self.accelerator.bf16_flops


def make_ledger(
    config: RunConfig,
    layout: Layout,
    accelerator: Accelerator | None,
    pp_rank: int = 0,
    stage: TrainingStage = PRETRAINING,
) -> Ledger:
    """Of a step of the first phase on a rank of `pp_rank`. Raises `ConfigError` as `step_operations` does."""
    rows: dict[str, Row] = {}
    operations = step_operations(config, layout, pp_rank, stage=stage)
    for operation in operations:
        row = rows.setdefault(operation.name, Row(operation.name, operation.kind, operation.is_update))
        for direction in ("forward", "backward"):
            getattr(row, direction).add(_cost(operation, direction, accelerator))
    return Ledger(
        accelerator,
        # Ranks that share sequences or matrices share their tokens too.
        config.phases[0].tokens_per_step / (layout.world_size / layout.pp),
        float(model_flops(operations)),
        list(rows.values()),
        step_traffic(config, layout, pp_rank, stage),
    )


def total(costs: Iterable[Cost]) -> Cost:
    """Their sum."""
    found = Cost()
    for cost in costs:
        found.add(cost)
    return found


def as_json(ledger: Ledger) -> dict[str, Any]:
    """Everything, ready for JSON; seconds are omitted where the device is not known."""
    device = ledger.accelerator
    found: dict[str, Any] = {
        "gpu": device.name if device else None,
        "tokens": ledger.tokens,
        "model_flops": ledger.model_flops,
        "operations": [
            {
                "name": row.name,
                "forward": _cost_as_json(row.forward, device),
                "backward": _cost_as_json(row.backward, device),
                "lever": row.lever,
            }
            | ({"gain_s": row.gain} if device else {})
            for row in ledger.rows
        ],
        "total": _cost_as_json(ledger.total, device),
        "update": _cost_as_json(ledger.update, device),
        "traffic": [
            {
                "axis": traffic.axis,
                "ranks": traffic.num_ranks,
                "ranks_per_node": traffic.ranks_per_node,
                "bytes": traffic.bytes,
            }
            | ({"limit_s": traffic.seconds(device)} if device else {})
            for traffic in ledger.traffic
        ],
    }
    if device:
        expected = ledger.total.expected
        found["mfu"] = {name: ledger.utilisation(expected[name]) for name in IMPLEMENTATIONS}
        found["tokens_per_s"] = {name: ledger.tokens / expected[name] for name in IMPLEMENTATIONS}
    return found


def _cost(operation: Operation, direction: Direction, accelerator: Accelerator | None) -> Cost:
    times = float(operation.times)
    cost = Cost()
    for which, work in operation.passes:
        if which == direction:
            one = Cost(times * work.flops, times * work.bytes)
            if accelerator:
                one.limit = times * work_limit(work, accelerator)
                kernels: Direction = "forward" if work is operation.forward else which  # what is done again, too
                for name in IMPLEMENTATIONS:
                    one.expected[name] = times * expected_seconds(operation, work, kernels, accelerator, name)
            cost.add(one)
    return cost


def _cost_as_json(cost: Cost, accelerator: Accelerator | None) -> dict[str, Any]:
    found: dict[str, Any] = {"flops": cost.flops, "bytes": cost.bytes}
    return found | ({"limit_s": cost.limit, "expected_s": cost.expected} if accelerator else {})
