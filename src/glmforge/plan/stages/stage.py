"""The stages of a model's training, as far as they differ in work, memory and traffic.

A stage declares the roles of its models (`glmforge.config.stage`); here they are what a run holds of them. Adapters
freeze a model and are trained in its place. Roles that use the same weights are one model: a reference is the actor
without its adapters, an engine generates with the actor's weights.

`lora` is no stage of its own, but the name of any stage that trains adapters of one model. Serving trains nothing and
has no step; `glmforge.plan.serving` counts it, and the rollouts of a stage that has them.
"""

from dataclasses import dataclass, replace

from glmforge.config.layout import Layout, resolve_layout
from glmforge.config.lora import LoraConfig
from glmforge.config.role import BF16_BYTES, FP32_BYTES, MODEL, Role
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.errors import ConfigError
from glmforge.plan.stages.rollout_batch import RolloutBatch, batch_of


@dataclass(frozen=True)
class TrainingStage:
    """A stage by its name, and the models of its step; the first is the one that the stage is about.

    `rollout` is what a step samples before it trains, None where it samples nothing.
    """

    name: str
    roles: tuple[Role, ...]
    rollout: RolloutBatch | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it trains one whole model and nothing else, as in pre-training."""
        return self.roles == (MODEL,)


PRETRAINING = TrainingStage("pretrain", (MODEL,))


def stage_of(config: RunConfig) -> TrainingStage:
    """What a run of this configuration trains: whole models, or adapters of them."""
    frozen_bytes = BF16_BYTES if config.precision.frozen_float == "bf16" else FP32_BYTES
    quantises = config.precision.frozen == "nf4"
    roles = STAGES[config.stage].roles(config)
    stage = _stage(config.stage, roles, config.lora, frozen_bytes=frozen_bytes, quantises=quantises)
    return replace(stage, rollout=batch_of(config))


def find_stage(name: str = "pretrain", lora: LoraConfig | None = None, run: RunConfig | None = None) -> TrainingStage:
    """A stage by name. `lora` trains adapters of what would be trained. `run` is for stages whose models depend on it,
    and has that of a run whose adapters are planned.

    Raises `ConfigError` for an unknown name, and where a stage and its adapters do not go together.
    """
    if name == "lora" and lora is None:
        raise ConfigError("--stage: lora needs its rank and targets; add --lora rank=16,target=q_proj+v_proj")
    stage = STAGES.get((run.stage if run is not None else "pretrain") if name == "lora" else name)
    if stage is None:
        choices = ", ".join((*STAGES, "lora"))
        raise ConfigError(
            f"--stage: unknown stage '{name}'; choose one of {choices}; without training see --rollout and --serve"
        )
    found = _stage(stage.name, stage.roles(run), lora)
    return found if run is None else replace(found, rollout=batch_of(run))


def _stage(
    name: str,
    roles: tuple[Role, ...],
    lora: LoraConfig | None,
    *,
    frozen_bytes: int = BF16_BYTES,
    quantises: bool = False,
) -> TrainingStage:
    """With adapters in the roles that train, and roles that use the same weights as one."""
    if lora is not None:
        name = "lora" if roles == (MODEL,) else name
        roles = tuple(
            replace(role, lora=lora, frozen_bytes=frozen_bytes, quantises=quantises) if role.is_trained else role
            for role in roles
        )
    found = {role.name: role for role in roles}
    for role in roles:
        owner = role.weights_of or (role.base_of if lora is not None else None)
        if owner is not None:
            one = found[owner]
            if role.cache_bytes:
                one = replace(one, cache_bytes=one.cache_bytes + role.cache_bytes, kept_bytes=role.kept_bytes)
            found[owner] = replace(one, forwards=one.forwards + role.forwards)
            del found[role.name]
    return TrainingStage(name, tuple(found.values()))


def with_model_of(role: Role, config: RunConfig) -> RunConfig:
    """The run with the role's model in the place of its own."""
    return config if role.model is None else config.model_copy(update={"model": role.model})


def laid_out(role: Role, config: RunConfig, layout: Layout) -> tuple[RunConfig, Layout]:
    """The same, and its layout. Raises `ConfigError` if a model of the role's own cannot be laid out so."""
    if role.model is None:
        return config, layout
    config = with_model_of(role, config)
    try:
        return config, resolve_layout(config, layout.world_size)
    except ConfigError as error:
        raise ConfigError(f"the model of role '{role.name}' does not fit the run's layout: {error}") from None
