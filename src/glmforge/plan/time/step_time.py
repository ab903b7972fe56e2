"""How long an optimizer step of a whole job takes: the slowest pipeline rank's work, what it waits for, the update."""

from dataclasses import dataclass

from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.machine import Machine
from glmforge.plan.stages.stage import PRETRAINING, Stage
from glmforge.plan.time.expected import Implementation
from glmforge.plan.time.ledger import make_ledger


@dataclass(frozen=True)
class StepTime:
    """A step of the first phase.

    Attributes:
        parts: seconds of the slowest rank by what it does or waits for ("compute", "update", "bubble", and the axis of
            what is communicated while nothing is computed); they add up to `seconds`.
        tokens: of the step, on all ranks.
        model_flops: of the step, on all ranks, as utilisation counts them.
    """

    machine: Machine
    layout: Layout
    parts: dict[str, float]
    tokens: int
    model_flops: float

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks."""
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """The model's FLOPs as a share of all devices' bf16 peak (MFU)."""
        peak = self.layout.world_size * self.machine.accelerator.bf16_flops
        return self.model_flops / self.seconds / peak


def predict_step(
    config: RunConfig,
    layout: Layout,
    machine: Machine,
    implementation: Implementation = "compiled",
    stage: Stage = PRETRAINING,
) -> StepTime:
    """Of the first phase of `config`. Nothing overlaps, and the pipeline waits as under 1F1B."""
    phase = config.phases[0]
    ledgers = [make_ledger(config, layout, machine.accelerator, pp_rank, stage) for pp_rank in range(layout.pp)]
    slowest = max(ledgers, key=lambda ledger: ledger.total.expected[implementation])
    update = slowest.update.expected[implementation]
    compute = slowest.total.expected[implementation] - update
    parts = {"compute": compute, "update": update}
    parts["bubble"] = compute * (layout.pp - 1) / layout.num_micro_batches(phase)
    for traffic in slowest.traffic:
        parts[traffic.axis] = traffic.seconds(machine.accelerator) or 0.0
    model_flops = sum(ledger.model_flops for ledger in ledgers) * layout.stage_ranks
    return StepTime(machine, layout, parts, phase.tokens_per_step, model_flops)
