"""The shape of a GLM-4.5/4.6 Mixture-of-Experts model.

`ModelConfig` is the architecture and nothing else. Its field names are those of the published `config.json`
(`Glm4MoeForCausalLM`), so that a reader of either finds the other. Defaults stand only where GLM-4.5,
GLM-4.5-Air and GLM-4.6 agree; every size must be given, because a forgotten size would silently make another
model. What GLM cannot be (tied embeddings, another activation) is a field with a single legal value: a
foreign configuration is then refused instead of being misread.
"""

from typing import Literal, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """Base of every configuration section: unknown keys and sloppy types are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)


def refuse(field: str, message: str) -> NoReturn:
    """Reject a combination of fields inside a validator; `field` is what the loader's error points at."""
    raise PydanticCustomError("combination", "{message}", {"field": field, "message": message})


class ModelConfig(Strict):
    """A GLM MoE: `first_k_dense_replace` dense layers, then MoE layers, then multi-token-prediction ones."""

    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt = Field(description="layers of the trunk, without the MTP layers")
    first_k_dense_replace: int = Field(ge=0, description="how many of the first layers are dense")
    intermediate_size: PositiveInt = Field(description="inner width of a dense layer's MLP")
    moe_intermediate_size: PositiveInt = Field(description="inner width of one expert")

    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt = Field(description="given, not derived: heads x head_dim need not be hidden_size")
    use_qk_norm: bool = Field(description="RMSNorm over head_dim on queries and keys before RoPE")
    attention_bias: bool = Field(default=True, description="bias of q, k and v; o never has one")
    partial_rotary_factor: float = Field(default=0.5, gt=0, le=1)
    rope_theta: PositiveFloat
    max_position_embeddings: PositiveInt

    n_routed_experts: PositiveInt
    n_shared_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: PositiveFloat

    num_nextn_predict_layers: int = Field(ge=0, description="multi-token-prediction (MTP) layers")

    rms_norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.02
    hidden_act: Literal["silu"] = "silu"
    tie_word_embeddings: Literal[False] = False

    eos_token_id: list[int] = Field(default=[151329, 151336, 151338], min_length=1)
    pad_token_id: int = Field(default=151329, ge=0)

    @property
    def rotary_dim(self) -> int:
        """How many of the first dims of each head rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def experts_per_group(self) -> int:
        return self.n_routed_experts // self.n_group

    @property
    def num_moe_layers(self) -> int:
        """MoE layers of the trunk, without the MTP layers (which are MoE layers too)."""
        return self.num_hidden_layers - self.first_k_dense_replace

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads = {heads}")
        if self.rotary_dim % 2 or self.rotary_dim == 0:
            refuse(
                "partial_rotary_factor",
                f"rotates {self.rotary_dim} of head_dim = {self.head_dim} dims, but RoPE turns pairs: "
                "choose the two so that their product is even",
            )
        return self

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if self.first_k_dense_replace > self.num_hidden_layers:
            refuse(
                "first_k_dense_replace",
                f"{self.first_k_dense_replace} is more than num_hidden_layers = {self.num_hidden_layers}",
            )
        return self

    @model_validator(mode="after")
    def _check_routing(self) -> Self:
        experts, groups = self.n_routed_experts, self.n_group
        if experts % groups:
            refuse("n_group", f"{groups} does not divide n_routed_experts = {experts}")
        if self.experts_per_group < 2:
            refuse(
                "n_group",
                f"leaves {self.experts_per_group} expert per group; a group is ranked by its best two",
            )
        if self.topk_group > groups:
            refuse("topk_group", f"{self.topk_group} is more than n_group = {groups}")
        selectable = self.topk_group * self.experts_per_group
        if self.num_experts_per_tok > selectable:
            refuse(
                "num_experts_per_tok",
                f"{self.num_experts_per_tok} is more than the {selectable} experts that "
                f"topk_group = {self.topk_group} of n_group = {groups} groups leave to choose from",
            )
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        for field, token in [
            ("pad_token_id", self.pad_token_id),
            *(("eos_token_id", t) for t in self.eos_token_id),
        ]:
            if not 0 <= token < self.vocab_size:
                refuse(field, f"{token} lies outside the vocabulary: vocab_size = {self.vocab_size}")
        return self
