"""The keys of DeepSpeed's JSON, as DeepSpeed 0.19 names them, and what becomes of each in a run.

A key in `OURS` fills in a run's own key that is missing, and must agree with one that is there; "auto" takes the run's.
One in `COMPUTED` must agree with the run, too. One in `INSTEAD` has no effect: the named one of ours does its work. One
in `REFUSED` must be off. All others are handed to the engine as they are; https://www.deepspeed.ai/docs/config-json
says what they mean.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic import SerializerFunctionWrapHandler as Dump

from glmforge.config.fields import YamlPair
from glmforge.config.model import Strict, refuse

NO_MUON = "DeepSpeed's Muon has other Newton-Schulz steps than ours and does not see experts, whose matrices are packed"

REFUSED: dict[str, str] = {
    "fp16.enabled": "fp16 needs loss scaling, which omits steps unknown to the trainer, and lacks the range of bf16, "
    "in which GLM is trained; use bf16",
    "torch_autocast": "types are explicit here (precision); use bf16",
    "bf16.bf16_master_weights_and_grads": "master weights are always fp32; remove it",
    "bf16.bf16_optimizer_states": "moments are always fp32; remove it",
    "domino": "not a setting of DeepSpeed: Domino is a tensor-parallel layer (deepspeed.runtime.domino) that a model "
    "must be written with; see parallel.async_tp of backend: native",
    "zero_optimization.zenflow": "ZenFlow itself decides when gradients are applied (update_interval), so the trainer "
    "could not clip and check them at each step; remove it",
    "zero_optimization.cpu_offload": 'outdated; use offload_optimizer and offload_param with "device": "cpu"',
    "prescale_gradients": "gradients are divided by the denominators of the global batch; remove it",
    "tensor_parallel": "use backend: native with parallel.tp",
    "expert_parallel": "use backend: native with parallel.ep",
    "pipeline": "use backend: native with parallel.pp",
    "sequence_parallel_size": "use backend: native with parallel.cp",
    "compile": "use backend: native with parallel.compile",
    "amp": "DeepSpeed has removed it; use bf16",
}
"""Key that must be off or missing -> why, or what to use."""

OURS: dict[str, str] = {
    "train_micro_batch_size_per_gpu": "parallel.micro_batch_size",
    "gradient_clipping": "optim.grad_clip",
    "bf16.enabled": "precision.compute",
    "optimizer.type": "optim.matrix_optimizer",
    **{f"optimizer.params.{name}": f"optim.{name}" for name in ("lr", "betas", "eps", "weight_decay")},
    "scheduler.type": "optim.schedule",
    "scheduler.params.warmup_max_lr": "optim.lr",
    "scheduler.params.warmup_num_steps": "optim.warmup_steps",
}
AS_OURS: dict[str, Callable[[Any], Any]] = {
    "gradient_clipping": lambda norm: norm or None,
    "bf16.enabled": lambda enabled: "bf16" if enabled else "fp32",
    "optimizer.type": lambda _: "adamw",
    "scheduler.type": {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}.get,
}

COMPUTED: dict[str, str] = {
    "train_batch_size": "phases.*.batch_size",
    "gradient_accumulation_steps": "phases.*.batch_size / ranks / parallel.micro_batch_size",
    "scheduler.params.cos_min_ratio": "optim.min_lr / optim.lr",
    "scheduler.params.total_num_steps": "steps of all phases",
}
INSTEAD: dict[str, str] = {
    "activation_checkpointing": "parallel.recompute",
    "dataloader_drop_last": "phases, whose batches are whole",
    "fp16": "precision",
    **{key: "glmforge profile train" for key in ("flops_profiler", "comms_logger")},
    **{key: "observe" for key in ("steps_per_print", "tensorboard", "wandb", "comet", "csv_monitor")},
    "checkpoint": "checkpoint",
}

# Counts are often written as 5e8, a float in JSON.
_whole = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
_Auto = Literal["auto"]
_Flag = bool | None
_Count = Annotated[NonNegativeInt, _whole] | None
_AutoCount = _Count | _Auto
_AutoReal = NonNegativeFloat | _Auto | None
_Share = Annotated[float, Field(ge=0, le=1)]
_Float = Literal["fp32", "bf16"]


class Given(Strict):
    """A part of the JSON, stored with the run as it was given."""

    @model_serializer(mode="wrap")
    def _only_given(self, dump: Dump) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key in self.model_fields_set and value is not None}


def _keys(kinds: Mapping[Any, str], base: type[Given] = Given) -> Any:
    """A class with optional keys: type -> names, which begin as None."""
    fields: dict[str, Any] = {name: (kind, None) for kind, names in kinds.items() for name in names.split()}
    return create_model("Keys", __base__=base, __module__=__name__, **fields)


class _Offload(_keys({_Count: "buffer_count", _Flag: "pin_memory"})):  # type: ignore[misc]
    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if self.device == "nvme" and self.nvme_path is None:
            refuse("nvme_path", "missing, but device is 'nvme'; give a directory on each node's local disk")
        return self


_ZERO: Mapping[Any, str] = {
    _keys({_Flag: "pipeline_read pipeline_write fast_init", _Share | None: "ratio"}, _Offload)
    | None: "offload_optimizer",
    _keys({_Count: "buffer_size max_in_cpu"}, _Offload) | None: "offload_param",
    _AutoCount: "reduce_bucket_size allgather_bucket_size stage3_prefetch_bucket_size "
    "stage3_param_persistence_threshold",
    _Count: "sub_group_size stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance "
    "stage3_module_granularity_threshold zero_hpz_partition_size",
    _Flag: "contiguous_gradients reduce_scatter use_multi_rank_bucket_allreduce allgather_partitions overlap_comm "
    "load_from_fp32_weights elastic_checkpoint stage3_gather_16bit_weights_on_model_save "
    "stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters "
    "round_robin_gradients zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
    "memory_efficient_linear override_module_apply log_trace_cache_warnings",
}


class ZeroOptimization(_keys(_ZERO)):  # type: ignore[misc]
    """`zero_optimization`."""

    stage: Literal[0, 1, 2, 3] = 0

    @model_validator(mode="after")
    def _check_stage(self) -> Self:
        if self.stage == 0:
            refuse("stage", "0, the default, shards nothing; set it to 1, 2 or 3, or use backend: native")
        optimizer, param = self.offload_optimizer, self.offload_param
        if self.stage < 3 and param is not None and param.device != "none":
            refuse("stage", f"{self.stage}, but offload_param needs stage 3; raise it, or remove that key")
        if self.stage < 3 and optimizer is not None and (optimizer.device == "nvme" or (optimizer.ratio or 1) != 1):
            refuse("stage", f"{self.stage}, but offload_optimizer to 'nvme' or of a 'ratio' needs stage 3; raise it")
        return self


_ADAM: Mapping[Any, str] = {
    _AutoReal: "lr eps weight_decay",
    YamlPair | _Auto | None: "betas",
    _Flag: "torch_adam",
    Literal[True] | None: "adam_w_mode bias_correction",
}


class Optimizer(_keys({_keys(_ADAM) | None: "params"})):  # type: ignore[misc]
    """`optimizer`. DeepSpeed's Adam, too, decouples weight decay, unless adam_w_mode is false."""

    type: str

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        if self.type.lower() not in ("adam", "adamw"):
            why = f"; {NO_MUON}" if self.type.lower() == "muon" else ""
            refuse("type", f"'{self.type}' is not supported with ZeRO{why}; use AdamW")
        return self


class SchedulerParams(_keys({_AutoReal: "warmup_max_lr", _AutoCount: "total_num_steps"})):  # type: ignore[misc]
    """`scheduler.params`, with DeepSpeed's defaults, but for warm-up: ours is linear and begins at 0."""

    warmup_min_lr: Literal[0, "auto"] = 0
    warmup_min_ratio: Literal[0] = 0
    warmup_num_steps: _AutoCount = 1000
    warmup_type: Literal["linear"] = "linear"
    cos_min_ratio: _Share = 1e-4


class Scheduler(Given):
    """`scheduler`."""

    type: Literal["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]
    params: SchedulerParams = SchedulerParams()


_TOP: Mapping[Any, str] = {
    Optimizer | None: "optimizer",
    Scheduler | None: "scheduler",
    _keys({_Flag | _Auto: "enabled", _Flag: "immediate_grad_update check_grad_overflow"}) | None: "bf16",
    _keys({_Count: "block_size queue_depth intra_op_parallelism", _Flag: "single_submit overlap_events use_gds"})
    | None: "aio",
    _AutoCount: "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps",
    _AutoReal: "gradient_clipping",
    _Count: "steps_per_print",
    _Flag: "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer disable_allgather wall_clock_breakdown "
    "memory_breakdown dump_state disable_python_gc dataloader_drop_last",
    _Float | None: "communication_data_type seq_parallel_communication_data_type",
    dict[Literal["grad_accum_dtype"], _Float] | None: "data_types",
    dict[str, Any] | None: "fp16 activation_checkpointing checkpoint tensorboard wandb comet csv_monitor "
    "flops_profiler comms_logger",
    Literal["mean"] | None: "gradient_allreduce_op",
    Literal[1] | None: "gradient_predivide_factor",
}


class DeepSpeedConfig(_keys(_TOP)):  # type: ignore[misc]
    """The whole JSON. Unknown keys, and those in `REFUSED` that are on, are errors."""

    zero_optimization: ZeroOptimization

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, given: Any) -> Any:
        for path, reason in REFUSED.items():
            given = _without_off(given, path.split("."), path, reason)
        return given


def _without_off(given: Any, keys: list[str], path: str, reason: str) -> Any:
    """`given` without what is off at `path`; refuses it if it is on."""
    if not isinstance(given, dict) or keys[0] not in given:
        return given
    value = given[keys[0]]
    if len(keys) > 1:
        return {**given, keys[0]: _without_off(value, keys[1:], path, reason)}
    if value.get("enabled", bool(value)) if isinstance(value, dict) else value not in (None, False, "auto"):
        refuse(path, reason)
    return {key: kept for key, kept in given.items() if key != keys[0]}
