"""Tensor and sequence parallelism: every matrix of a layer cut over the ranks of the tp axis.

The cut of Shoeybi et al., 2019 (Megatron-LM, arXiv 1909.08053): q, k, v, gate and up by their outputs (whole heads,
parts of the MLP's width), o and down by their inputs, so that a layer needs to enter and leave the shared region twice
and nothing in between; embedding and head by the vocabulary. The router, norms and the MTP layer's `eh_proj` are whole
on every rank. Under sequence parallelism each rank runs those on its own tokens; without it all ranks run them on all
tokens, but for the MoE block, which always takes the rank's own: its tokens are sent to experts from there, each once.

Cut parameters become DTensors on the tp axis, which is how FSDP2 and checkpoints come to know of the cut. The modules
compute on their local part. Whole parameters that see only a part of the tokens or heads get a part of their gradient,
which `gradients.sum_partial_gradients` completes by the table of parameters.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from glmforge.model.layers import Linear, SwiGLU
from glmforge.model.moe import MoE, MoEOutput
from glmforge.model.transformer import GlmMoe
from glmforge.parallel import collectives
from glmforge.parallel.placement import local_weight
from glmforge.parallel.region import TensorRegion
from glmforge.parallel.vocabulary import ShardedEmbedding, ShardedLMHead
from glmforge.parallel.world import World


class ColumnLinear(Linear):
    """A part of the outputs, from all inputs."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else local_weight(self.bias).to(x.dtype)
        return F.linear(x, local_weight(self.weight).to(x.dtype), bias)


class RowLinear(Linear):
    """All outputs, summed over ranks from each one's part of the inputs; leaves the region."""

    region: TensorRegion

    def forward(self, x: Tensor) -> Tensor:
        assert self.bias is None, "a bias would be added once per rank"
        return self.region.leave(F.linear(x, local_weight(self.weight).to(x.dtype)))


def parallelize_tensors(model: GlmMoe, world: World, *, sequence_parallel: bool) -> None:
    """Cut `model` (on the meta device) over `tp` in place."""
    if world.axis_size("tp") == 1:
        return
    mesh = world.meshes["dense"]["tp"]
    region = TensorRegion(mesh.get_group(), sequence_parallel)
    # The MoE block has its own tokens either way, so what it brackets moves tokens as under sequence parallelism.
    own_tokens = TensorRegion(mesh.get_group(), sequence_parallel=True)
    if model.model.embed_tokens is not None:
        _cut(model.model.embed_tokens, ShardedEmbedding, mesh, 0, region)
    if model.lm_head is not None:
        _cut(model.lm_head, ShardedLMHead, mesh, 0, region)
    for layer in model.layers:
        attention = layer.self_attn
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            _cut(projection, ColumnLinear, mesh, 0)
        _cut(attention.o_proj, RowLinear, mesh, 1, region)
        _enter_before(attention, region)
        if isinstance(layer.mlp, MoE):
            _cut_swiglu(layer.mlp.shared_experts, mesh, own_tokens)
            if not sequence_parallel:
                _keep_own_tokens(layer.mlp, mesh.get_group())
        else:
            _cut_swiglu(layer.mlp, mesh, region)


def _cut_swiglu(mlp: SwiGLU, mesh: DeviceMesh, region: TensorRegion) -> None:
    _cut(mlp.gate_proj, ColumnLinear, mesh, 0)
    _cut(mlp.up_proj, ColumnLinear, mesh, 0)
    _cut(mlp.down_proj, RowLinear, mesh, 1, region)
    _enter_before(mlp, region)


def _cut(
    module: nn.Module, kind: type[nn.Module], mesh: DeviceMesh, dim: int, region: TensorRegion | None = None
) -> None:
    """Make `module` one of `kind`, with its weight (and its bias, by outputs) cut along `dim`."""
    module.__class__ = kind
    if region is not None:
        module.region = region  # type: ignore[assignment]
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, shard_parameter(parameter, mesh, dim))


def shard_parameter(parameter: nn.Parameter, mesh: DeviceMesh, dim: int) -> nn.Parameter:
    """A DTensor of the parameter's shape, cut along `dim` over the only axis of `mesh`; still without values."""
    assert parameter.is_meta, "parameters are cut before they get values"
    shape = list(parameter.shape)
    shape[dim], rest = divmod(shape[dim], mesh.size())
    assert rest == 0, f"{mesh.size()} ranks do not divide dim {dim} of {tuple(parameter.shape)}"
    local = torch.empty(shape, dtype=parameter.dtype, device="meta")
    return nn.Parameter(DTensor.from_local(local, mesh, [Shard(dim)], run_check=False))


def _enter_before(module: nn.Module, region: TensorRegion) -> None:
    """Bring the tokens of the first argument into the region before the module runs."""
    module.register_forward_pre_hook(lambda _, args: (region.enter(args[0]), *args[1:]))


def _keep_own_tokens(moe: MoE, group: dist.ProcessGroup) -> None:
    """Let a MoE block that gets all tokens run on this rank's, and give all tokens back."""

    def gather(module: nn.Module, args: object, output: MoEOutput) -> MoEOutput:
        return output._replace(y_TD=collectives.gather_shares(output.y_TD, group))

    moe.register_forward_pre_hook(lambda _, args: (collectives.split(args[0], group), *args[1:]))
    moe.register_forward_hook(gather)
