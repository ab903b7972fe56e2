"""The optimizers: which there are, and what is to be known of each before torch is imported.

`OPTIMIZERS` is the one list of them. Configurations are checked against it, `glmforge plan` counts bytes by it, and
names and shapes of the states in a checkpoint follow from it. A new optimizer is a row here and a file in
`glmforge.optim` with its arithmetic, a subclass of `glmforge.optim.update_rule.UpdateRule`; settings of its own are a
class here and a base of `OptimizerSettings`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPair, one_of
from glmforge.config.model import Strict, refuse

StateDtype = Literal["fp32", "bf16"]

_BYTES: dict[StateDtype, int] = {"fp32": 4, "bf16": 2}


class AdamSettings(Strict):
    """Of AdamW and LAMB."""

    betas: YamlPair = (0.9, 0.95)
    eps: PositiveFloat = 1e-8

    @model_validator(mode="after")
    def _check_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            refuse("betas", f"{list(self.betas)}: both must lie in [0, 1)")
        return self


class MuonSettings(Strict):
    """Of Muon."""

    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    muon_nesterov: bool = True
    muon_update_rms: PositiveFloat = 0.2
    newton_schulz: Literal["quintic", "polar_express"] = "quintic"
    newton_schulz_steps: PositiveInt = 5


class OptimizerSettings(MuonSettings, AdamSettings):
    """The settings of all optimizers."""


@dataclass(frozen=True)
class State:
    """A tensor that an optimizer keeps for each parameter it trains; zeros before the first step.

    Attributes:
        name: before the parameter's in a checkpoint: "momentum.lm_head.weight". States of one name mean the same, so
            that a run may go on with another optimizer which keeps the same states.
        is_scalar: a single number; otherwise laid out like the parameter.
        dtype: of its elements.
    """

    name: str
    is_scalar: bool = False
    dtype: StateDtype = "fp32"

    def key(self, parameter: str) -> str:
        """Its name in the optimizer's state."""
        return f"{self.name}.{parameter}"


@dataclass(frozen=True, kw_only=True)
class OptimizerDeclaration:
    """One optimizer.

    Attributes:
        name: in configurations.
        update_rule: "module:class" of its arithmetic, imported by those that train.
        states: what it keeps for each parameter.
        state_dtypes: in which its rule can keep the states; bf16 means that it rounds them stochastically.
        trains_vectors: whether a rule may give it biases and norms; matrices every optimizer trains.
        takes_embedding: whether, as `optim.matrix_optimizer`, it trains the word embedding too; otherwise AdamW does.
    """

    name: str
    update_rule: str
    states: tuple[State, ...]
    state_dtypes: tuple[StateDtype, ...] = ("fp32",)
    trains_vectors: bool = False
    takes_embedding: bool = True

    @property
    def bytes_per_element(self) -> int:
        """Bytes of state for each element of a parameter; scalars beside it are not counted."""
        return sum(_BYTES[state.dtype] for state in self.states if not state.is_scalar)

    def in_dtype(self, dtype: StateDtype) -> "OptimizerDeclaration":
        """The same with states of that type, and with a number of steps, which rounding to bf16 draws from."""
        if dtype == "fp32":
            return self
        kept = [state if state.is_scalar else replace(state, dtype=dtype) for state in self.states]
        return replace(self, states=tuple(dict.fromkeys((*kept, _STEP))))


_STEP = State("step", is_scalar=True)
_MOMENTS = State("exp_avg"), State("exp_avg_sq"), _STEP
_EITHER: tuple[StateDtype, ...] = ("fp32", "bf16")

OPTIMIZERS = {
    declaration.name: declaration
    for declaration in (
        OptimizerDeclaration(
            name="muon",
            update_rule="glmforge.optim.muon:Muon",
            states=(State("momentum"),),
            state_dtypes=_EITHER,
            takes_embedding=False,
        ),
        OptimizerDeclaration(
            name="adamw",
            update_rule="glmforge.optim.adamw:AdamW",
            states=_MOMENTS,
            state_dtypes=_EITHER,
            trains_vectors=True,
        ),
        OptimizerDeclaration(
            name="lamb", update_rule="glmforge.optim.lamb:Lamb", states=_MOMENTS, state_dtypes=_EITHER
        ),
    )
}


OptimizerName = Annotated[str, one_of(OPTIMIZERS)]
"""A name in `OPTIMIZERS`."""
