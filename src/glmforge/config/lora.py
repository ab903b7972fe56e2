"""`lora`: what low-rank adapters (Hu et al., 2021, arXiv 2106.09685) a run trains in the place of the model's weights.

Which parameters the section means is worked out in `glmforge.config.adapters`.
"""

import math
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from glmforge.config.fields import YamlPath, refuse_duplicates
from glmforge.config.model import Strict, refuse
from glmforge.errors import ConfigError

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MAX_RANK = 2**16

Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has no tuples


class LoraConfig(Strict):
    """Adapters beside the linear maps that `targets` name; everything that is neither adapter nor saved module is
    frozen.
    """

    rank: PositiveInt = Field(default=16, le=MAX_RANK, description="rank of every adapter")
    alpha: PositiveFloat | None = Field(
        default=None, description="adapters are scaled by alpha / rank; None: twice the rank"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on adapter inputs; not for routed experts")
    targets: Names = Field(
        default=ATTENTION,
        min_length=1,
        description="linear layers that get adapters: part of a name (q_proj, experts, experts.down_proj, gate, "
        "lm_head), a name pattern, or all-linear",
    )
    rslora: bool = Field(default=False, description="scale by alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732)")
    dora: bool = Field(
        default=False, description="train the norm of each weight row separately (DoRA, arXiv 2402.09353)"
    )
    lr_ratio: PositiveFloat = Field(
        default=1.0, description="ratio of the learning rates of B and A (LoRA+, arXiv 2402.12354, uses 16)"
    )
    modules_to_save: Names = Field(
        default=(), description="parameters trained in full next to the adapters; same syntax as targets"
    )

    init_from: YamlPath | None = Field(
        default=None,
        description="initial adapters: a PEFT adapter directory, or another run on the same base; None: adapters "
        "start at zero",
    )

    @property
    def scaled_alpha(self) -> float:
        """`alpha`, or what it is by default."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def scaling(self) -> float:
        """What an adapter's output is multiplied by."""
        return self.scaled_alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for field, names in (("targets", self.targets), ("modules_to_save", self.modules_to_save)):
            refuse_duplicates(field, list(names))
            if not all(names):
                refuse(field, "contains an empty name; remove it")
        return self


def parse_lora(text: str) -> LoraConfig:
    """The section from what is given to `--lora`: "rank=16,target=q_proj+experts"; without a target, attention's maps.

    Raises `ConfigError`. What else the section has does not change what a plan says.
    """
    settings = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := sorted(settings.keys() - {"rank", "target"}):
        raise ConfigError(f"--lora: '{unknown[0]}' is not a setting; write rank=16,target={'+'.join(ATTENTION)}")
    rank = settings.get("rank", "")
    if not (rank.isascii() and rank.isdigit() and 0 < int(rank) <= MAX_RANK):
        raise ConfigError(
            f"--lora: rank='{rank}' is not a valid rank; give a whole number from 1 to {MAX_RANK:,}, such as rank=16"
        )
    targets = dict.fromkeys(settings.get("target", "+".join(ATTENTION)).split("+"))
    if "" in targets:
        raise ConfigError("--lora: target has an empty name; write target=q_proj+experts")
    return LoraConfig(rank=int(rank), targets=tuple(targets))
