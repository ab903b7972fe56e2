"""The stages of a model's training, as far as they differ in work, memory and traffic.

The stages of a configuration (`stage: pretrain`, `midtrain`, `sft`) train one whole model, but for what `optim.rules`
freeze, and differ in settings only. Those that a configuration cannot say yet are planned by name: `lora`, `reward`,
`policy`.

A stage is a list of roles: models that take part in its step, each with what is trained of it. LoRA freezes the model
and trains adapters. A reward model has one output in place of the vocabulary. Training a policy takes up to four models
on the same GPUs (actor, reference, critic, reward), of which some only run forward.

Nothing of a role that is frozen has a gradient or an optimizer state, and it is held in bf16: only what changes in
small steps needs fp32. What is trained is held in fp32, as everywhere in this project. What rules freeze is held as
`precision.frozen` says.

Rollouts and serving train nothing and have no step; `glmforge.plan.serving` counts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from glmforge.config.adapters import adapted
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import HeldDtype, Parameter, ParameterTable, parameter_table
from glmforge.config.quantised import quantised
from glmforge.config.schema import RunConfig
from glmforge.config.stage import STAGES
from glmforge.errors import ConfigError

PLANNED_ONLY = ("lora", "reward", "policy")
"""Stages that a configuration cannot say yet."""
PolicyModel = Literal["reference", "critic", "reward"]
POLICY_MODELS: tuple[PolicyModel, ...] = get_args(PolicyModel)

_BF16, _FP32 = 2, 4
_HELD_BYTES: dict[HeldDtype, int] = {"uint8": 1, "bf16": _BF16}


@dataclass(frozen=True)
class Role:
    """A model in a step.

    Attributes:
        name: what it is called among the models of its stage.
        is_trained: whether any of it is: what `lora` says if it has one, else everything.
        forwards: forward passes over the step's tokens besides that of training, such as for log-probabilities.
        has_vocabulary: whether it answers with logits; otherwise it has a score for each token and no other head.
        frozen_bytes: of an element of what is frozen.
        quantises: whether frozen matrices are held in NF4 (`glmforge.config.quantised`).

    Layers for multi-token prediction are held by a model that has a vocabulary and is trained.
    """

    name: str
    is_trained: bool = True
    lora: LoraConfig | None = None
    forwards: int = 0
    has_vocabulary: bool = True
    frozen_bytes: int = _BF16
    quantises: bool = False

    def has_logits(self, model: ModelConfig) -> bool:
        """Whether it answers with logits: a model may have no language-model head."""
        return self.has_vocabulary and model.lm_head

    def trains(self, row: Parameter) -> bool:
        """Whether a parameter of the role changes."""
        return self.is_trained and row.trained and row.lr_scale > 0

    def element_bytes(self, row: Parameter) -> int:
        """Of one element of a parameter or buffer, as it is held between steps."""
        if row.dtype is not None:
            return _HELD_BYTES[row.dtype]
        return _FP32 if self.trains(row) or row.fp32 else self.frozen_bytes

    @property
    def trains_all(self) -> bool:
        """Whether nothing of it is frozen."""
        return self.is_trained and self.lora is None

    @property
    def predicts_ahead(self) -> bool:
        """Whether it may run layers for multi-token prediction."""
        return self.is_trained and self.has_vocabulary

    def parameters(self, model: ModelConfig) -> ParameterTable:
        """What the role holds, adapters included."""
        if not self.has_vocabulary:
            model = model.model_copy(update={"heads": {"score": 1}})
        table = parameter_table(model)
        if not self.has_vocabulary:
            table = ParameterTable(row for row in table.values() if row.family != "head" and not row.mtp)
        elif not self.is_trained:
            table = ParameterTable(row for row in table.values() if not row.mtp)
        return adapted(table, model, self.lora) if self.lora else table

    def held(self, model: ModelConfig) -> ParameterTable:
        """The same as it lies in memory: the parts of quantised weights in the place of the weights."""
        table = self.parameters(model)
        return quantised(table) if self.quantises else table


@dataclass(frozen=True)
class TrainingStage:
    """A stage by its name, and the models of its step; the first is the one that the stage is about."""

    name: str
    roles: tuple[Role, ...]

    @property
    def is_trained(self) -> bool:
        """Whether a run can train it today, so that the trainer's own step is its."""
        return self.name in STAGES


MODEL = Role("model")
"""Trained whole, as in pre-training."""
PRETRAINING = TrainingStage("pretrain", (MODEL,))


def stage_of(config: RunConfig) -> TrainingStage:
    """What a run of this configuration trains: the whole model, or adapters of it."""
    if config.lora is None:
        return find_stage(config.stage)
    frozen_bytes = _BF16 if config.precision.frozen_float == "bf16" else _FP32
    quantises = config.precision.frozen == "nf4"
    return TrainingStage("lora", (Role("model", lora=config.lora, frozen_bytes=frozen_bytes, quantises=quantises),))


def find_stage(
    name: str = "pretrain", lora: LoraConfig | None = None, policy_models: Sequence[str] = POLICY_MODELS
) -> TrainingStage:
    """A stage by name. `lora` trains adapters of what would be trained; `policy_models` are those beside the actor.

    Raises `ConfigError` for an unknown name, and where a stage and its adapters do not go together.
    """
    if name in STAGES and lora is None:
        return TrainingStage(name, (MODEL,))
    stage = "lora" if name in STAGES else name
    if stage not in PLANNED_ONLY:
        known = f"known are {', '.join((*STAGES, *PLANNED_ONLY))}; for what trains nothing see --rollout and --serve"
        raise ConfigError(f"--stage: '{name}' is none; {known}")
    if stage == "lora" and lora is None:
        raise ConfigError("--stage: lora needs its rank and targets; add --lora rank=16,target=q_proj+v_proj")
    if stage == "policy":
        return TrainingStage(stage, _policy_roles(lora, policy_models))
    return TrainingStage(stage, (Role("model", lora=lora, has_vocabulary=stage != "reward"),))


def _policy_roles(lora: LoraConfig | None, names: Sequence[str]) -> tuple[Role, ...]:
    """The actor scores the step's tokens once more before it is updated: the ratio of PPO needs its old probabilities.

    With adapters the reference is the actor without them, and costs a pass but no weights.
    """
    if unknown := [name for name in names if name not in POLICY_MODELS]:
        raise ConfigError(f"--policy-models: '{unknown[0]}' is none; known are {', '.join(POLICY_MODELS)}")
    actor = Role("actor", lora=lora, forwards=1)
    if lora is not None and "reference" in names:
        actor = replace(actor, forwards=2)
    others = {
        "reference": Role("reference", is_trained=False, forwards=1),
        "critic": Role("critic", lora=lora, forwards=1, has_vocabulary=False),
        "reward": Role("reward", is_trained=False, forwards=1, has_vocabulary=False),
    }
    own = [name for name in POLICY_MODELS if name in names and not (name == "reference" and lora is not None)]
    return actor, *(others[name] for name in own)
