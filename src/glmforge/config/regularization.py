"""`regularization`: what keeps a model from learning its text by heart."""

from pydantic import Field, NonNegativeFloat

from glmforge.config.model import Strict


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
