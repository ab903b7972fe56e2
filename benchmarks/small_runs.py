"""Runs whose data need not exist; those of `plan_accuracy.py`: three sizes of a model, their layouts on a few ranks."""

import itertools
from collections.abc import Iterator
from typing import Any

from glmforge.config.layout import AXES, resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError

BATCH_SIZE, SEQ_LEN = 16, 128

_MODEL: dict[str, Any] = {
    "num_hidden_layers": 8,
    "first_k_dense_replace": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
    "use_qk_norm": True,
    "rope_theta": 1e6,
    "max_position_embeddings": 4096,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 1.0,
    "eos_token_id": [1],
    "pad_token_id": 1,
}
SIZES: dict[str, dict[str, int]] = {
    "small": {"hidden_size": 128, "intermediate_size": 384, "moe_intermediate_size": 64} | {"vocab_size": 2048},
    "medium": {"hidden_size": 192, "intermediate_size": 576, "moe_intermediate_size": 96} | {"vocab_size": 2048},
    "large": {"hidden_size": 256, "intermediate_size": 1024, "moe_intermediate_size": 128} | {"vocab_size": 4096},
}
Parallel = dict[str, Any]

LAYOUTS: dict[str, tuple[int, Parallel]] = {
    "one rank": (1, {}),
    "one rank, recomputed": (1, {"recompute": "full", "micro_batch_size": 4}),
    "fsdp 2": (2, {}),
    "replicate 2": (2, {"dp_replicate": 2}),
    "tp 2": (2, {"tp": 2}),
    "cp 2": (2, {"cp": 2}),
    "ep 2": (2, {"ep": 2}),
    "pp 2": (2, {"pp": 2, "micro_batch_size": 2}),
    "fsdp 4": (4, {}),
    "replicate 2 x fsdp 2": (4, {"dp_replicate": 2, "micro_batch_size": 2}),
    "fsdp 2 x tp 2": (4, {"tp": 2}),
    "fsdp 4, ep 4": (4, {"ep": 4}),
    "pp 2 x fsdp 2": (4, {"pp": 2, "micro_batch_size": 2}),
    "pp 4": (4, {"pp": 4, "micro_batch_size": 2}),
    "fsdp 8": (8, {}),
    "fsdp 4 x tp 2, ep 2": (8, {"tp": 2, "ep": 2}),
    "fsdp 2 x cp 2 x tp 2": (8, {"cp": 2, "tp": 2}),
    "pp 2 x fsdp 2 x tp 2": (8, {"pp": 2, "tp": 2, "micro_batch_size": 2}),
}
"""By name: ranks, and `parallel` of the run."""


def run_of(
    model: dict[str, Any],
    phase: dict[str, Any],
    /,
    *,
    optim: dict[str, Any] | None = None,
    parallel: Parallel | None = None,
    compute: str = "bf16",
    **sections: Any,
) -> RunConfig:
    """A run of one phase; its data need not exist. `sections` of the configuration are added, or replace."""
    given = {
        "name": "benchmark",
        "model": model,
        "data": {"tokenizer": "none", "sources": [{"name": "text", "path": "none"}]},
        "phases": [{"name": "main", "steps": 1} | phase],
        "optim": {"lr": 1e-3, "warmup_steps": 0} | (optim or {}),
        "parallel": parallel or {},
        "precision": {"compute": compute},
    }
    return RunConfig.model_validate(given | sections)


def small_run(size: str, parallel: Parallel, compute: str = "bf16") -> RunConfig:
    """A step of a size of `SIZES`."""
    phase = {"seq_len": SEQ_LEN, "batch_size": BATCH_SIZE, "aux_loss_weight": 0.0}
    return run_of(_MODEL | SIZES[size], phase, parallel=parallel, compute=compute, name=size)


def every_layout(size: str, world_size: int) -> Iterator[tuple[str, Parallel]]:
    """Name and `parallel` of each layout that the run can have on so many ranks, each name once.

    A rank takes its rows at once, in a pipeline under GPipe. A pipeline is also run under 1F1B, with micro-batches as
    large as they can be while there are two for each stage, or else one.
    """
    sizes = [number for number in range(1, world_size + 1) if world_size % number == 0]
    for grid in itertools.product(sizes, repeat=len(AXES)):
        axes = dict(zip(AXES, grid, strict=True))
        for ep in sizes:
            name = " x ".join(f"{axis} {number}" for axis, number in (axes | {"ep": ep}).items() if number > 1)
            for words, schedule in _schedules(axes):
                parallel = axes | {"ep": ep} | schedule
                try:
                    resolve_layout(small_run(size, parallel), world_size)
                except ConfigError:
                    continue
                yield name + words, parallel


def _schedules(axes: dict[str, int]) -> Iterator[tuple[str, Parallel]]:
    """What is added to the name, and settings."""
    if axes["pp"] == 1:
        yield "", {}
        return
    yield ", gpipe", {"pipeline_schedule": "gpipe"}
    rows = BATCH_SIZE // (axes["dp_replicate"] * axes["dp_shard"])
    wanted = (2 * axes["pp"], axes["pp"])
    size = next((rows // number for number in wanted if number <= rows and rows % number == 0), 1)
    yield ", 1f1b", {"micro_batch_size": size}
