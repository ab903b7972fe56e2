"""Lay the model on the data axes with FSDP2: every rank keeps a shard of each parameter, gradient and moment.

One unit per decoder layer, one for what is left (embedding, final norm, head). Communication carries the compute
dtype, masters stay fp32 and gradients are reduced in fp32. Routers are units of their own that stay fp32 throughout,
because their choice must not depend on how many ranks there are.

Gradients are SUMMED over ranks: the loss is divided by the global number of labels before the backward pass.
"""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from glmforge.model.moe import MoE
from glmforge.model.transformer import GlmMoe


def apply_fsdp(model: GlmMoe, mesh: DeviceMesh, *, compute_dtype: torch.dtype, reshard_after_forward: bool) -> None:
    """Shard `model` in place over `dp_shard`, with copies over `dp_replicate` where that axis is longer than 1."""
    if mesh["dp_replicate"].size() == 1:
        mesh = mesh["dp_shard"]
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    router_policy = MixedPrecisionPolicy(
        param_dtype=torch.float32, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for layer in model.model.layers:
        if isinstance(layer.mlp, MoE):
            fully_shard(
                layer.mlp.gate,
                mesh=mesh,
                mp_policy=router_policy,
                reshard_after_forward=reshard_after_forward,
            )
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # NCCL's PREMUL_SUM would do this too, but gloo lacks it; a plain sum needs neither.
            module.set_force_sum_reduction_for_comms(True)
