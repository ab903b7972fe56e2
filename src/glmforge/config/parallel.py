"""`parallel` and `precision`: how the model lies on the processes, and in which numbers it computes."""

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from glmforge.config.model import Strict, refuse

LowPrecisionMap = Literal["attention", "dense_mlp", "shared_experts", "experts"]
"""Linear maps of a decoder layer, by what they belong to."""

SPLIT_SCHEDULES = ("interleaved_zero_bubble", "zbv", "dualpipev")
"""Pipeline schedules whose backward passes come in two parts, for the activations and for the weights."""


class ParallelConfig(Strict):
    """How the model is laid out on the processes; see `glmforge.config.layout.resolve_layout`.

    The processes form a grid pp x dp_replicate x dp_shard x cp x tp, ranks of the last axis next to each other. Expert
    parallelism is laid over it: the `ep` ranks that share a layer's experts are neighbours among the
    dp_shard x cp x tp ranks of a pipeline stage, so `ep` does not multiply the number of processes.
    """

    pp: PositiveInt = Field(default=1, description="pipeline stages' ranks, each with some of the layers")
    dp_replicate: PositiveInt = Field(default=1, description="groups of ranks that hold full copies (HSDP)")
    dp_shard: PositiveInt | Literal["auto"] = Field(
        default="auto", description="data ranks that shard one copy (FSDP); auto: all ranks left by the other axes"
    )
    cp: PositiveInt = Field(default=1, description="ranks that share each sequence (context parallelism)")
    tp: PositiveInt = Field(default=1, description="ranks that share each matrix (tensor parallelism)")
    ep: PositiveInt = Field(default=1, description="ranks that share a layer's experts; spans dp_shard x cp x tp")
    ep_dispatch: Literal["all_to_all", "deepep"] = Field(
        default="all_to_all", description="how tokens reach their experts; deepep is a library for NVLink and RDMA"
    )
    ep_overlap: bool = Field(
        default=False,
        description="split each micro-batch in two: one half computes while the other's tokens are exchanged",
    )
    sequence_parallel: bool = Field(
        default=True,
        description="sequence parallelism: tp ranks split the tokens between matmuls instead of "
        "repeating norms and residuals",
    )
    context_method: Literal["gather", "ulysses"] = Field(
        default="gather", description="cp ranks gather keys and values, or exchange heads for tokens (ulysses)"
    )
    pipeline_schedule: Literal[
        "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"
    ] = Field(default="1f1b", description="order of the micro-batches' forward and backward passes")
    pipeline_stages_per_rank: PositiveInt | None = Field(
        default=None, description="model chunks per pp rank; None: 1 for gpipe and 1f1b, 2 for the others"
    )
    pipeline_layers: list[NonNegativeInt] | None = Field(
        default=None, description="decoder layers of each stage, first to last; None: balance the work"
    )
    micro_batch_size: PositiveInt | None = Field(
        default=None, description="sequences per forward pass on a rank; None: its whole share at once"
    )
    reduce_gradients: Literal["every_micro_batch", "last_micro_batch"] = Field(
        default="every_micro_batch",
        description="when gradients are reduced within each copy of the model. last_micro_batch: once per step, "
        "keeping full fp32 gradients until then. Between copies gradients are always reduced once per step",
    )
    reshard_after_forward: bool | None = Field(
        default=None,
        description="free gathered weights between forward and backward; None: yes, except under pp, where each "
        "micro-batch would gather them again",
    )
    prefetch_layers: NonNegativeInt = Field(default=1, description="layers to prefetch weights for")
    cpu_offload: bool = Field(
        default=False, description="keep master weights, gradients and optimizer state in host memory"
    )
    recompute: Literal["none", "selective", "full", "budget"] = Field(
        default="none", description="activation checkpointing: what the backward pass recomputes"
    )
    recompute_budget: float = Field(
        default=0.5, ge=0, le=1, description="fraction of the activations to keep with recompute: budget; needs compile"
    )
    activation_offload: bool = Field(
        default=False, description="keep saved activations in host memory; not with compile"
    )
    compile: bool = Field(default=False, description="torch.compile each decoder layer")
    async_tp: bool = Field(
        default=False, description="overlap tp communication with matmuls, over NVLink; needs compile"
    )
    process_group_timeout_s: PositiveInt = Field(
        default=600, description="timeout of a collective; where fault_tolerance.hang_timeout_s applies, it acts first"
    )
    join_timeout_s: PositiveInt = Field(default=600, description="timeout for all processes to join at the start")

    @property
    def reshards_after_forward(self) -> bool:
        return self.pp == 1 if self.reshard_after_forward is None else self.reshard_after_forward

    @model_validator(mode="after")
    def _check_resharding(self) -> Self:
        # A split backward pass looks the weights up before it gathers them: freed ones would lose their gradients.
        if self.pp > 1 and self.reshard_after_forward and self.pipeline_schedule in SPLIT_SCHEDULES:
            refuse(
                "reshard_after_forward",
                f"{self.pipeline_schedule} needs the weights until their gradients are computed; remove this key",
            )
        return self

    @model_validator(mode="after")
    def _check_dispatch(self) -> Self:
        if self.ep_dispatch == "deepep" and self.ep == 1:
            refuse("ep_dispatch", "'deepep' sends tokens between ep ranks, but ep is 1; raise ep, or set all_to_all")
        return self

    @model_validator(mode="after")
    def _check_overlap(self) -> Self:
        if self.ep_overlap and self.ep == 1:
            refuse("ep_overlap", "computes while ep ranks exchange tokens, but ep is 1; raise ep, or remove this key")
        if self.ep_overlap and self.micro_batch_size is not None and self.micro_batch_size % 2:
            refuse("ep_overlap", f"splits micro-batches in two; make micro_batch_size = {self.micro_batch_size} even")
        return self

    @model_validator(mode="after")
    def _check_recompute(self) -> Self:
        if self.recompute == "budget" and not self.compile:
            refuse(
                "recompute",
                "'budget' is torch.compile's choice of what to keep: set compile to true as well",
            )
        if self.activation_offload and self.compile:
            refuse("activation_offload", "compiled layers manage their own saved tensors; set compile or this to false")
        return self

    @model_validator(mode="after")
    def _check_async_tp(self) -> Self:
        if self.async_tp and not (self.compile and self.tp > 1 and self.sequence_parallel):
            refuse("async_tp", "is done by torch.compile; needs compile: true, tp > 1 and sequence_parallel: true")
        return self


class PrecisionConfig(Strict):
    """Compute type of the matmuls. Masters of what is trained, router, softmax and reductions are always fp32."""

    compute: Literal["bf16", "fp32"] = "bf16"
    frozen: Literal["nf4", "bf16", "fp32"] = Field(
        default="fp32",
        description="storage of weights frozen by optim.rules or lora. bf16: half the memory, lossless for published "
        "weights; nf4: decoder matrices in 4 bits (QLoRA), for runs with lora",
    )
    low_precision: Literal["none", "fp8", "mxfp8_emulated"] = Field(
        default="none", description="8-bit products in forward and input gradient; mxfp8 is emulated in bf16"
    )
    low_precision_maps: list[LowPrecisionMap] = Field(
        default=["attention", "dense_mlp", "shared_experts", "experts"],
        description="linear layers that low_precision applies to",
    )

    @property
    def frozen_float(self) -> Literal["bf16", "fp32"]:
        """How frozen weights are held that are not quantised."""
        return self.compute if self.frozen == "nf4" else self.frozen

    @model_validator(mode="after")
    def _check_frozen(self) -> Self:
        if self.frozen == "bf16" and self.compute != "bf16":
            refuse("frozen", "'bf16' would be converted in every step; set compute to bf16 too, or this to fp32")
        if self.frozen == "nf4" and self.low_precision != "none":
            refuse("low_precision", f"'{self.low_precision}' is for weights that are not quantised: set it to none")
        return self

    @model_validator(mode="after")
    def _check_low_precision(self) -> Self:
        if self.low_precision != "none" and self.compute != "bf16":
            refuse("low_precision", f"'{self.low_precision}' gives bf16 results: set compute to bf16, or this to none")
        return self
