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
    """Adapters beside the linear maps that `targets` name; whatever is neither adapter nor saved module is frozen."""

    rank: PositiveInt = Field(default=16, le=MAX_RANK, description="inner width of every adapter")
    alpha: PositiveFloat | None = Field(
        default=None, description="an adapter counts alpha / rank times; None is twice the rank"
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="of what an adapter reads; not of routed experts'")
    targets: Names = Field(
        default=ATTENTION,
        min_length=1,
        description="maps that get adapters, by a part of their name (q_proj, experts, experts.down_proj, gate, "
        "lm_head), by a pattern of names, or all-linear",
    )
    rslora: bool = Field(default=False, description="count alpha / sqrt(rank) times (rsLoRA, arXiv 2312.03732)")
    dora: bool = Field(
        default=False, description="train the length of each row of the weight apart (DoRA, arXiv 2402.09353)"
    )
    lr_ratio: PositiveFloat = Field(
        default=1.0, description="learning rate of B over that of A (LoRA+, arXiv 2402.12354); 16 is usual there"
    )
    modules_to_save: Names = Field(
        default=(), description="parameters that are trained whole beside the adapters, named as targets are"
    )

    init_from: YamlPath | None = Field(
        default=None,
        description="adapters that they begin with: a PEFT adapter's directory, or another run on the same base; "
        "None: they begin as nothing",
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
                refuse(field, "an empty name; leave it out")
        return self


def parse_lora(text: str) -> LoraConfig:
    """The section from what is given to `--lora`: "rank=16,target=q_proj+experts"; without a target, attention's maps.

    Raises `ConfigError`. What else the section has does not change what a plan says.
    """
    settings = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := sorted(settings.keys() - {"rank", "target"}):
        raise ConfigError(f"--lora: '{unknown[0]}' is no setting; write rank=16,target={'+'.join(ATTENTION)}")
    rank = settings.get("rank", "")
    if not (rank.isascii() and rank.isdigit() and 0 < int(rank) <= MAX_RANK):
        raise ConfigError(
            f"--lora: rank='{rank}' is no rank; give a whole number from 1 to {MAX_RANK:,}, such as rank=16"
        )
    targets = dict.fromkeys(settings.get("target", "+".join(ATTENTION)).split("+"))
    if "" in targets:
        raise ConfigError("--lora: target has an empty name; write target=q_proj+experts")
    return LoraConfig(rank=int(rank), targets=tuple(targets))
