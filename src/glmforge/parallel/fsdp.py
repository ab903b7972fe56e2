"""Lay the model on the data axes with FSDP2: every rank keeps a shard of each parameter, gradient and moment.

One unit per decoder layer, one for what is left (embedding, final norm, head). Communication carries the compute
dtype, masters stay fp32 and gradients are reduced in fp32. Routers are units of their own that stay fp32 throughout,
because their choice must not depend on how many ranks there are. Experts are units of their own where they lie on
other ranks than the rest of the layer, which is so under expert or tensor parallelism.

Gradients are SUMMED over ranks: the loss is divided by the global number of labels before the backward pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from glmforge.config.parallel import ParallelConfig
from glmforge.model.moe import Experts
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.world import World

_PACKED_DIMS = 3  # expert, row, column


def needs_fsdp(world: World) -> bool:
    """Whether any parameter is shared with, or copied to, another data rank."""
    return world.axis_size("dp_replicate") * max(world.axis_size("fsdp"), world.axis_size("efsdp")) > 1


def apply_fsdp(
    root: nn.Module, model: GlmMoe, world: World, parallel: ParallelConfig, *, compute_dtype: torch.dtype
) -> None:
    """Shard `model` in place; `root` is the module that is called, the model itself or one around it."""
    dense = data_mesh(world, "dense", "fsdp")
    common: dict[str, Any] = {"mesh": dense, "offload_policy": _offload_policy(parallel, world.device)}
    mixed = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    in_fp32 = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=False)
    reshard = parallel.reshards_after_forward
    ignored = _shard_experts(model, world, common | {"mp_policy": mixed, "reshard_after_forward": reshard})
    for moe in model.moe_layers.values():
        fully_shard(moe.gate, mp_policy=in_fp32, reshard_after_forward=reshard, **common)
    for layer in model.layers:
        fully_shard(layer, mp_policy=mixed, reshard_after_forward=reshard, ignored_params=ignored, **common)
    fully_shard(root, mp_policy=mixed, reshard_after_forward=False, ignored_params=ignored, **common)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # NCCL's PREMUL_SUM would do this too, but gloo lacks it; a plain sum needs neither.
            module.set_force_sum_reduction_for_comms(True)
    prefetch(model, parallel.prefetch_layers)


def data_mesh(world: World, view: str, shard_axis: str) -> DeviceMesh:
    """The axes that shard a parameter in this view, with `dp_replicate` before it where there are copies."""
    mesh = world.meshes[view]
    return mesh["dp_replicate", shard_axis] if world.axis_size("dp_replicate") > 1 else mesh[shard_axis]


def _shard_experts(model: GlmMoe, world: World, options: dict[str, Any]) -> set[nn.Parameter]:
    """Make units of the experts where their ranks are not the layer's; returns parameters that FSDP leaves alone."""
    if world.axis_size("ep") * world.axis_size("tp") == 1:
        return set()
    experts = [moe.experts for moe in model.moe_layers.values()]
    if world.axis_size("dp_replicate") * world.axis_size("efsdp") == 1:
        return {parameter for module in experts for parameter in module.parameters()}
    mesh = data_mesh(world, "expert", "efsdp")
    for module in experts:
        placement = _expert_placement(module, world)
        fully_shard(module, **(options | {"mesh": mesh, "shard_placement_fn": placement}))
    return set()


def _expert_placement(experts: Experts, world: World) -> Callable[[nn.Parameter], Shard]:
    """Whole experts per rank if they divide; else each expert's rows, so that no rank has more than its share.

    What all experts share (an adapter's) is cut along its first dim.
    """
    num_local, ranks = experts.num_experts // world.axis_size("ep"), world.axis_size("efsdp")
    packed = [parameter for parameter in experts.parameters() if parameter.dim() == _PACKED_DIMS]
    rows_divide = all(parameter.shape[1] % ranks == 0 for parameter in packed)
    dim = 1 if num_local % ranks and rows_divide else 0
    return lambda parameter: Shard(dim if parameter.dim() == _PACKED_DIMS else 0)


def _offload_policy(parallel: ParallelConfig, device: torch.device) -> OffloadPolicy:
    return CPUOffloadPolicy(pin_memory=device.type == "cuda") if parallel.cpu_offload else OffloadPolicy()


def prefetch(model: GlmMoe, num_layers: int, *, with_mtp: bool = True) -> None:
    """Let each layer gather the weights of the next ones, experts included, before it computes.

    Without `with_mtp` the last layer of the trunk gathers no MTP layers, as where none are run.
    """
    layers = model.layers if with_mtp else model.trunk_layers
    for index, layer in enumerate(layers):
        following = layers[index + 1 : index + 1 + num_layers]
        preceding = layers[max(0, index - num_layers) : index][::-1]
        _fsdp(layer).set_modules_to_forward_prefetch([unit for other in following for unit in _units(other)])
        _fsdp(layer).set_modules_to_backward_prefetch([unit for other in preceding for unit in _units(other)])


def _units(layer: nn.Module) -> list[FSDPModule]:
    return [module for module in layer.modules() if isinstance(module, FSDPModule)]


def _fsdp(module: nn.Module) -> FSDPModule:
    assert isinstance(module, FSDPModule)
    return module
