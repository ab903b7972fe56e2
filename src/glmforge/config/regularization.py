"""`regularization`: what keeps a model from fitting its data too closely, or from leaving what it was."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict

EWC_BYTES = 8
"""Of each trained parameter: its Fisher information and its earlier value, in fp32."""


class EwcConfig(Strict):
    """Elastic weight consolidation; see `glmforge.optim.elastic`."""

    fisher: YamlPath = Field(description="directory that 'glmforge fisher' wrote")
    strength: PositiveFloat = Field(
        default=1.0,
        description="tokens of the text behind the Fisher information that count as much as one of the new text",
    )


class RegularizationConfig(Strict):
    """GLM trains with weight decay only; these are for small models and fine-tuning on little data."""

    dropout: float = Field(default=0.0, ge=0, lt=1, description="of what attention and MLP add to the residual stream")
    attention_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="of attention probabilities; takes the slow exact kernel"
    )
    neftune_alpha: NonNegativeFloat = Field(
        default=0.0,
        description="in stage sft: noise on embeddings, uniform within alpha / sqrt(length x hidden_size) (NEFTune, "
        "arXiv 2310.05914); 5 is usual, 0 is none",
    )
    ewc: EwcConfig | None = Field(default=None, description="pulls weights back that other text depends on; None: not")
