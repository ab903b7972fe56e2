"""`optim`: which optimizer trains what, and the learning rate."""

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from glmforge.config.model import Strict, refuse
from glmforge.config.optimizers import OPTIMIZERS, OptimizerName, OptimizerSettings, StateDtype
from glmforge.config.schedules import ScheduleName


class ParameterRule(Strict):
    """An exception for the parameters whose name matches; what is None stays as it is without the rule."""

    match: str = Field(
        min_length=1,
        description="pattern of parameter names, such as 'model.layers.*.mlp.gate.weight'; '*' also matches dots",
    )
    weight_decay: NonNegativeFloat | None = None
    lr_scale: NonNegativeFloat | None = Field(
        default=None, description="multiplies the learning rate, on top of layer_lr_decay; 0 freezes"
    )
    optimizer: OptimizerName | None = Field(default=None, description="muon and lamb train matrices only")


class LearningConfig(Strict):
    """What does not depend on how an optimizer works."""

    matrix_optimizer: OptimizerName = "muon"
    lm_head: Literal["muon", "adamw"] = Field(
        default="muon", description="GLM's report uses Muon, others AdamW; muon: same optimizer as matrix_optimizer"
    )
    state_dtype: StateDtype = Field(
        default="fp32", description="dtype of momentum and moments; bf16 halves the memory, with stochastic rounding"
    )
    lr: PositiveFloat = 2.5e-4
    min_lr: NonNegativeFloat = 2.5e-5
    warmup_steps: NonNegativeInt | None = Field(default=None, description="linear warm-up, in steps of the planned run")
    warmup_tokens: NonNegativeInt | None = Field(default=None, description="linear warm-up, in tokens")
    schedule: ScheduleName = Field(
        default="cosine", description="from lr to min_lr over the tokens of all phases; wsd: constant, then linear"
    )
    schedule_unit: Literal["tokens", "steps"] = Field(
        default="tokens",
        description="unit of the schedule; use steps if batches have no fixed number of tokens, such as rollouts",
    )
    decay_share: float = Field(
        default=0.2, gt=0, le=1, description="fraction of the run, at its end, in which schedule: wsd decays"
    )
    weight_decay: NonNegativeFloat = Field(
        default=0.1, description="on matrices and embeddings, not on biases and norms"
    )
    layer_lr_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="each layer's learning rate is this times the layer's above; norm, head and MTP use lr",
    )
    rules: list[ParameterRule] = Field(default=[], description="overrides by parameter name; the first match applies")
    grad_clip: PositiveFloat | None = Field(default=1.0, description="global gradient norm; None: no clipping")

    @model_validator(mode="after")
    def _check_state_dtype(self) -> Self:
        used = {self.matrix_optimizer, *(rule.optimizer for rule in self.rules if rule.optimizer)}
        for name in sorted(used):
            if self.state_dtype not in OPTIMIZERS[name].state_dtypes:
                refuse("state_dtype", f"optimizer '{name}' does not support states in {self.state_dtype}; use fp32")
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        if self.warmup_steps is not None and self.warmup_tokens is not None:
            refuse("warmup_tokens", "give 'warmup_steps' or 'warmup_tokens', not both")
        if self.schedule_unit == "steps" and self.warmup_tokens is not None:
            refuse(
                "warmup_tokens", "optim.schedule_unit is 'steps'; give warmup_steps, or set schedule_unit to 'tokens'"
            )
        if self.min_lr > self.lr:
            refuse("min_lr", f"{self.min_lr:g} is more than lr = {self.lr:g}")
        return self


class OptimConfig(OptimizerSettings, LearningConfig):
    """Muon (or another) for matrices, AdamW for the rest; one learning-rate schedule over all phases.

    The fields of `LearningConfig` come first.
    """
