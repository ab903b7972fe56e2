"""The models that a stage holds in memory, each in its role: actor, reference, critic, reward model, engine.

A role is trained whole, trained by adapters, or only run. Nothing of a role that is frozen has a gradient or an
optimizer state, and it is held in bf16: only what changes in small steps needs fp32. What is trained is held in fp32,
as everywhere in this project. What rules freeze is held as `precision.frozen` says.
"""

from dataclasses import dataclass, field

from glmforge.config.adapters import adapted
from glmforge.config.lora import LoraConfig
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import HeldDtype, Parameter, ParameterTable, parameter_table
from glmforge.config.quantised import quantised

BF16_BYTES, FP32_BYTES = 2, 4
_HELD_BYTES: dict[HeldDtype, int] = {"uint8": 1, "bf16": BF16_BYTES}


@dataclass(frozen=True)
class Role:
    """A model of a stage. Roles of a stage take turns on the same ranks.

    Attributes:
        name: what it is called among the models of its stage.
        is_trained: whether any of it is: what `lora` says if it has one, else everything.
        forwards: forward passes over the step's tokens besides that of training, such as for log-probabilities.
        has_vocabulary: whether it answers with logits; otherwise it has a score for each token and no other head, or
            the heads of `model`.
        frozen_bytes: of an element of what is frozen.
        quantises: whether frozen matrices are held in NF4 (`glmforge.config.quantised`).
        model: its architecture; None: the run's.
        weights_of: the role whose weights it uses, so that it holds none itself.
        base_of: the role that it is without adapters. In a run with adapters both are one model; otherwise this one is
            a model of its own. The reference of a policy is.
        cache_bytes: of the caches of keys and values on each rank, for the engine that generates with this role. They
            are there while it generates, not while models are trained.
        kept_bytes: of weights that the engine gathers and keeps on each rank meanwhile, at most; None: all of them.

    Layers for multi-token prediction are held by a model that has a vocabulary and is trained.
    """

    name: str
    is_trained: bool = True
    lora: LoraConfig | None = None
    forwards: int = 0
    has_vocabulary: bool = True
    frozen_bytes: int = BF16_BYTES
    quantises: bool = False
    model: ModelConfig | None = field(default=None, hash=False)
    weights_of: str | None = None
    base_of: str | None = None
    cache_bytes: int = 0
    kept_bytes: int | None = None

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
        return FP32_BYTES if self.trains(row) or row.fp32 else self.frozen_bytes

    @property
    def trains_all(self) -> bool:
        """Whether nothing of it is frozen."""
        return self.is_trained and self.lora is None

    @property
    def predicts_ahead(self) -> bool:
        """Whether it may run layers for multi-token prediction."""
        return self.is_trained and self.has_vocabulary

    @property
    def has_passes(self) -> bool:
        """Whether the step's tokens go through it at all; an engine has only prompts and answers of its own."""
        return self.is_trained or self.forwards > 0

    def parameters(self, model: ModelConfig) -> ParameterTable:
        """What the role holds, adapters included. `model`: the run's, if the role has no own model."""
        heads = {"score": 1} if self.model is None else self.model.heads or {"score": 1}
        model = self.model or model
        if not self.has_vocabulary:
            model = model.model_copy(update={"heads": heads})
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


MODEL = Role("model")
"""Trained whole, as in pre-training."""
