"""Stage `rl` with the models that a test wants, for plans."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from glmforge.config.lora import LoraConfig
from glmforge.config.rl import RlConfig
from glmforge.config.role import Role
from glmforge.config.stage import STAGES
from glmforge.plan.stages.stage import TrainingStage, _stage

FOUR: dict[str, Any] = {
    "reward_model": "runs/reward",
    "rewards": {"terms": [{"kind": "reward_model"}]},
    "advantage": {"kind": "gae"},
    "critic": {},
    "kl": {},
    "steps_per_rollout": 2,
}
"""Settings of `rl` with all four models, which also score old log-probabilities."""


def policy(models: Sequence[str] = ("reference", "reward", "critic"), lora: LoraConfig | None = None) -> TrainingStage:
    """The actor beside these models, without its rollouts; it scores its answers once before it is trained."""
    run = cast("Any", SimpleNamespace(rl=RlConfig.model_validate(FOUR), precision=SimpleNamespace(compute="bf16")))
    actor, *others = STAGES["rl"].roles(run)
    roles: tuple[Role, ...] = (replace(actor, cache_bytes=0), *(role for role in others if role.name in models))
    return _stage("rl", roles, lora)
