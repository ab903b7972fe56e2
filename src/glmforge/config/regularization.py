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
        description="tokens of the Fisher text that weigh as much as one token of the new text",
    )


class RegularizationConfig(Strict):
    """GLM trains with weight decay only; these are for small models and fine-tuning on little data."""

    dropout: float = Field(default=0.0, ge=0, lt=1, description="on attention and MLP outputs, before the residual")
    attention_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="on attention probabilities; uses the slow exact kernel"
    )
    neftune_alpha: NonNegativeFloat = Field(
        default=0.0,
        description="in stage sft: uniform noise on embeddings within alpha / sqrt(length x hidden_size) (NEFTune, "
        "arXiv 2310.05914); usually 5, 0 disables it",
    )
    ewc: EwcConfig | None = Field(
        default=None,
        description="elastic weight consolidation: penalise changes to weights that earlier text depends on; None: off",
    )
