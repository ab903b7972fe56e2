"""How long each phase of a run takes if nothing fails and nothing is saved, by the predicted step or a utilisation.

What checkpoints and failures add belongs together, since one is paid to lose less by the other: see `goodput`.
"""

from dataclasses import dataclass, field, replace

from glmforge.config.layout import resolve_layout
from glmforge.config.phase import PhaseConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.counts.flops import train_flops_per_token
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.collectives import LinkBytes
from glmforge.plan.machine.machine import Machine
from glmforge.plan.machine.provenance import Provenance, least_sure
from glmforge.plan.stages.stage import PRETRAINING, TrainingStage
from glmforge.plan.time.step_time import StepTime, predict_step

HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class PhaseTime:
    """A phase of training, undisturbed.

    Attributes:
        model_flops: of all its tokens, as utilisation counts them.
        seconds: None if the layout does not serve the phase; `problem` then says why.
        provenance: of the predicted seconds; None if the utilisation was given.
        sent: bytes of all ranks in the whole phase by axis, over NVLink and between nodes; none without a layout.
    """

    name: str
    tokens: int
    steps: int
    model_flops: float
    seconds: float | None
    problem: str | None = None
    provenance: Provenance | None = None
    sent: dict[str, LinkBytes] = field(default_factory=dict)


def predicted_phases(
    config: RunConfig,
    world_size: int,
    machine: Machine,
    stage: TrainingStage = PRETRAINING,
    imbalance: float = 1.0,
) -> list[PhaseTime]:
    """Every phase on the one layout of `config`, by the predicted seconds of its steps."""
    phases = (select_phase(config, phase.name) for phase in config.phases)
    return [_predicted(phase, world_size, machine, stage, imbalance) for phase in phases]


def phases_at(
    config: RunConfig, world_size: int, machine: Machine, utilisation: float, stage: TrainingStage = PRETRAINING
) -> list[PhaseTime]:
    """Every phase at this share of the devices' bf16 peak (MFU), regardless of the layout."""
    if not 0 < utilisation <= 1:
        raise ConfigError(f"--mfu: {utilisation:g} must be between 0 and 1, such as 0.3")
    rate = world_size * machine.accelerator.bf16_flops * utilisation
    return [_phase(config, phase, stage, model_flops(config, phase, stage) / rate) for phase in config.phases]


def model_flops(config: RunConfig, phase: PhaseConfig, stage: TrainingStage = PRETRAINING) -> float:
    """Of all tokens of a phase; each sequence counts as one document."""
    per_token = train_flops_per_token(config.model, phase.seq_len, phase.mtp_loss_weight > 0, stage, config.optim)
    return per_token * phase.num_samples * phase.seq_len


def _predicted(
    config: RunConfig, world_size: int, machine: Machine, stage: TrainingStage, imbalance: float
) -> PhaseTime:
    """The only phase of `config`. Within a ramp a step's time grows with its batch, so both ends are predicted."""
    (phase,) = config.phases
    try:
        layout = resolve_layout(config, world_size)
    except ConfigError as error:
        return _phase(config, phase, stage, None, str(error))

    def predicted(batch_size: int) -> StepTime:
        steady = phase.model_copy(update={"batch_size": batch_size, "batch_ramp": None})
        only = config.model_copy(update={"phases": [steady]})
        return predict_step(only, layout, machine, stage=stage, imbalance=imbalance)

    spans = phase.batch_spans
    first, last = spans[0].batch_size, spans[-1].batch_size
    full = predicted(last)
    longest = _without_checkpoints(full)
    slope = (longest - _without_checkpoints(predicted(first))) / (last - first) if first != last else 0.0
    seconds = sum(span.num_steps * (longest - slope * (last - span.batch_size)) for span in spans)
    return replace(
        _phase(config, phase, stage, seconds),
        provenance=least_sure(full.provenance.values()),
        sent=_sent(full, phase.num_samples / last),
    )


def _without_checkpoints(step: StepTime) -> float:
    return step.seconds - step.parts.get("checkpoint", 0.0)


def _sent(step: StepTime, times: float) -> dict[str, LinkBytes]:
    """What all ranks send in this many steps. A ramp's smaller batches count as parts of full ones."""
    found: dict[str, LinkBytes] = {}
    for pp_rank in range(step.layout.pp):
        for link in step.links_at(pp_rank):
            before, ranks = found.get(link.axis, LinkBytes(0, 0)), step.layout.stage_ranks * times
            inside, outside = (ranks * size for size in link.sent)
            found[link.axis] = LinkBytes(before.inside + inside, before.outside + outside)
    return found


def _phase(
    config: RunConfig, phase: PhaseConfig, stage: TrainingStage, seconds: float | None, problem: str | None = None
) -> PhaseTime:
    tokens, flops = phase.num_samples * phase.seq_len, model_flops(config, phase, stage)
    return PhaseTime(phase.name, tokens, phase.num_steps, flops, seconds, problem)
