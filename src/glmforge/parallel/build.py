"""From a configuration to this rank's part of the model.

Order: modules on the meta device, compile each layer, shard, allocate this rank's shards, fill them. The initial
weights are those of a single process: each rank draws just the rows it keeps (see `model.init`).
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from glmforge.config.schema import RunConfig
from glmforge.model.init import initial_rows
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.fsdp import apply_fsdp
from glmforge.parallel.world import World

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build_model(config: RunConfig, world: World) -> GlmMoe:
    """The model with initial weights, fp32 masters, computing in `precision.compute`, laid out on `world`."""
    with torch.device("meta"):
        model = GlmMoe(config.model)
    model.compute_dtype = DTYPES[config.precision.compute]
    if config.parallel.compile:
        for module in (*model.model.layers, model.model.norm):
            module.compile()
    if world.mesh is not None:
        apply_fsdp(
            model,
            world.mesh,
            compute_dtype=model.compute_dtype,
            reshard_after_forward=config.parallel.reshard_after_forward,
        )
    model.to_empty(device=world.device)
    initialize_shards(model, config.seed)
    return model


@torch.no_grad()
def initialize_shards(model: GlmMoe, seed: int) -> None:
    """Fill this rank's rows of every parameter, and every buffer whole."""
    std = model.config.initializer_range
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        local, start = _local_rows(tensor)
        local.copy_(initial_rows(name, tensor.shape, start, start + local.shape[0], seed=seed, std=std))


def _local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """The part of `tensor` that lies on this rank and the index of its first row."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), offset[0]
