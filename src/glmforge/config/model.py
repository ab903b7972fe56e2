"""The shape of a GLM-4.5/4.6 Mixture-of-Experts model.

`ModelConfig` is the architecture and nothing else. Its field names are those of the published `config.json`
(`Glm4MoeForCausalLM`), so that a reader of either finds the other. Defaults stand only where GLM-4.5,
GLM-4.5-Air and GLM-4.6 agree; every size must be given, because a forgotten size would silently make another
model. What GLM cannot be (another activation) is a field with a single legal value: a foreign configuration is then
refused instead of being misread. Sizes have upper bounds far above any model, so that a slip of some zeros, or a
stranger's file, is refused before anybody counts its layers one by one.
"""

import re
from typing import Annotated, Literal, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

Size = Annotated[int, Field(gt=0, le=2**24)]
"""A width or a number of heads, experts or tokens."""

MAX_LAYERS = 1000
MAX_ELEMENTS = 2**50
"""Of one matrix, all experts' together."""

_OWN_MODULES = frozenset({"model", "lm_head"})
"""Top-level names of the published checkpoint."""


class Strict(BaseModel):
    """Base of every configuration section: unknown keys and sloppy types are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False)


def refuse(field: str, message: str) -> NoReturn:
    """Reject a combination of fields inside a validator; `field` is what the loader's error points at."""
    raise PydanticCustomError("combination", "{message}", {"field": field, "message": message})


class ModelConfig(Strict):
    """A GLM MoE: `first_k_dense_replace` dense layers, then MoE layers, then multi-token-prediction ones."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: PositiveInt = Field(le=MAX_LAYERS, description="decoder layers, without the MTP layers")
    first_k_dense_replace: int = Field(ge=0, description="number of leading dense layers")
    intermediate_size: Size = Field(description="MLP width of dense layers")
    moe_intermediate_size: Size = Field(description="MLP width of one expert")

    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size = Field(description="set explicitly: heads x head_dim may differ from hidden_size")
    use_qk_norm: bool = Field(description="RMSNorm over head_dim on queries and keys before RoPE")
    attention_bias: bool = Field(default=True, description="bias on q, k and v; o has none")
    partial_rotary_factor: float = Field(default=0.5, gt=0, le=1)
    rope_theta: PositiveFloat
    max_position_embeddings: PositiveInt = Field(le=2**40)

    n_routed_experts: Size
    n_shared_experts: Size
    num_experts_per_tok: Size
    n_group: PositiveInt = 1
    topk_group: PositiveInt = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: PositiveFloat

    num_nextn_predict_layers: int = Field(ge=0, le=MAX_LAYERS, description="multi-token-prediction (MTP) layers")

    rms_norm_eps: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.02
    hidden_act: Literal["silu"] = "silu"
    tie_word_embeddings: bool = Field(
        default=False,
        description="share one matrix between embedding and head; no published GLM does, but the architecture allows "
        "it",
    )

    # No fields of a published model, and absent from files where unused.
    heads: dict[str, PositiveInt] = Field(
        default={},
        max_length=16,
        exclude_if=lambda heads: not heads,
        description="linear heads at the end of the model (score: 1 for rewards, value: 1), and their outputs",
    )
    lm_head: bool = Field(
        default=True,
        exclude_if=lambda has_one: has_one is True,
        description="whether the model has a language-model head; false: only the heads in `heads`",
    )

    eos_token_id: list[int] = Field(
        default=[151329, 151336, 151338], max_length=1000, description="end-of-text tokens; may be empty"
    )
    pad_token_id: int | None = Field(default=151329, ge=0)

    @property
    def rotary_dim(self) -> int:
        """How many of the first dims of each head rotate."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def experts_per_group(self) -> int:
        return self.n_routed_experts // self.n_group

    @property
    def num_moe_layers(self) -> int:
        """MoE decoder layers, without the MTP layers (which are MoE layers too)."""
        return self.num_hidden_layers - self.first_k_dense_replace

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            refuse("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads = {heads}")
        if self.rotary_dim % 2 or self.rotary_dim == 0:
            refuse(
                "partial_rotary_factor",
                f"rotates {self.rotary_dim} of head_dim = {self.head_dim} dims, but RoPE rotates pairs: "
                "choose the two so that their product is even",
            )
        return self

    @model_validator(mode="after")
    def _check_elements(self) -> Self:
        rows = {
            "vocab_size": self.vocab_size,
            "num_attention_heads": self.num_attention_heads * self.head_dim,
            "intermediate_size": self.intermediate_size,
            "n_routed_experts": 2 * self.n_routed_experts * self.moe_intermediate_size,
            "n_shared_experts": self.n_shared_experts * self.moe_intermediate_size,
        }
        for field, number in rows.items():
            if number * self.hidden_size > MAX_ELEMENTS:
                refuse(field, f"makes a matrix of {number * self.hidden_size:,} elements; at most {MAX_ELEMENTS:,}")
        return self

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        for name in self.heads:
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name) or name in _OWN_MODULES:
                refuse("heads", f"'{name[:40]}' is not a valid head name; use lower-case letters, such as score")
        if not self.lm_head:
            for field, value, fix in (
                (
                    "heads",
                    not self.heads,
                    "is empty, and without lm_head the model has no output; add a head, such as {score: 1}",
                ),
                ("num_nextn_predict_layers", self.num_nextn_predict_layers, "MTP needs lm_head: set it to 0"),
                ("tie_word_embeddings", self.tie_word_embeddings, "ties lm_head, which is false: set it to false"),
            ):
                if value:
                    refuse(field, fix)
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
                f"topk_group = {self.topk_group} of n_group = {groups} groups provide; lower it",
            )
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        pad = [] if self.pad_token_id is None else [self.pad_token_id]
        for field, token in [
            *(("pad_token_id", t) for t in pad),
            *(("eos_token_id", t) for t in self.eos_token_id),
        ]:
            if not 0 <= token < self.vocab_size:
                refuse(field, f"{token} is outside the vocabulary; vocab_size = {self.vocab_size}")
        return self
