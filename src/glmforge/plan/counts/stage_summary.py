"""The models of a stage as rows for tables and JSON: what they hold, what of it is trained, and what a token costs."""

from dataclasses import asdict, dataclass

from glmforge.config.model import ModelConfig
from glmforge.config.optim import OptimConfig
from glmforge.config.parameter_groups import is_frozen
from glmforge.config.role import Role
from glmforge.plan.counts.flops import role_flops_per_token
from glmforge.plan.counts.memory import TrainingState, role_state
from glmforge.plan.stages.stage import TrainingStage


@dataclass(frozen=True)
class RoleSummary:
    """One model of a stage, whole, before it is laid on any device.

    Attributes:
        parameters: elements that it holds, buffers included.
        trained: elements that change, in this many tensors.
        flops_per_token: of a training step.
    """

    name: str
    parameters: int
    trained: int
    trained_tensors: int
    state: TrainingState
    flops_per_token: float


def summarise_stage(
    config: ModelConfig, optim: OptimConfig, stage: TrainingStage, mean_attended: float, with_mtp: bool
) -> list[RoleSummary]:
    """The stage's models in order; lengths and MTP as for `train_flops_per_token`."""
    return [
        _summary(config, optim, role, role_flops_per_token(config, mean_attended, with_mtp, role, optim))
        for role in stage.roles
    ]


def stage_as_json(stage: TrainingStage, rows: list[RoleSummary]) -> dict[str, object]:
    """Everything above, ready for JSON."""
    return {
        "stage": stage.name,
        "models": [asdict(row) for row in rows],
        "state_bytes": sum(row.state.total for row in rows),
        "flops_per_token": sum(row.flops_per_token for row in rows),
    }


def _summary(config: ModelConfig, optim: OptimConfig, role: Role, flops: float) -> RoleSummary:
    rows = list(role.parameters(config).values())
    trained = [row for row in rows if role.trains(row) and not is_frozen(row.name, optim)]
    return RoleSummary(
        name=role.name,
        parameters=sum(row.size for row in rows),
        trained=sum(row.size for row in trained),
        trained_tensors=len(trained),
        state=role_state(config, optim, role),
        flops_per_token=flops,
    )
