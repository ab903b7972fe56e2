"""Tensor and sequence parallelism: every matrix of a layer cut over the ranks of the tp axis.

The cut of Shoeybi et al., 2019 (Megatron-LM, arXiv 1909.08053): q, k, v, gate and up by their outputs (whole heads,
parts of the MLP's width), o and down by their inputs, so that a layer needs to enter and leave the shared region twice
and nothing in between; embedding and head by the vocabulary. The router, norms and the MTP layer's `eh_proj` are whole
on every rank. Under sequence parallelism each rank runs those on its own tokens; without it all ranks run them on all
tokens, but for the MoE block, which always takes the rank's own: its tokens are sent to experts from there, each once.

Which dim of a parameter is cut stands in the table of parameters; where the ranks' shared work begins and ends stands
here. Cut parameters become DTensors on the tp axis, which is how FSDP2, checkpoints and the modules that compute on
their local part come to know of the cut. Whole parameters that see only a part of the tokens or heads get a part of
their gradient, which `gradients.sum_partial_gradients` completes by the table.
"""

import torch.distributed as dist

from glmforge.config.parameters import ParameterTable
from glmforge.model.moe import MoE
from glmforge.model.transformer import GlmMoe
from glmforge.parallel.placement import shard_parameters
from glmforge.parallel.region import OwnTokens, TensorRegion
from glmforge.parallel.vocabulary import ShardedVocabulary
from glmforge.parallel.world import World


def parallelize_tensors(model: GlmMoe, world: World, table: ParameterTable, *, sequence_parallel: bool) -> None:
    """Cut `model` (on the meta device) over `tp` in place, and let its blocks enter and leave the shared region."""
    if world.axis_size("tp") == 1:
        return
    mesh = world.meshes["dense"]["tp"]
    shard_parameters(model, mesh, lambda name: table[name].tp_dim)
    _place(model, mesh.get_group(), sequence_parallel)


def _place(model: GlmMoe, group: dist.ProcessGroup, sequence_parallel: bool) -> None:
    region = TensorRegion(group, sequence_parallel)
    # The MoE block has its own tokens either way, so what it brackets moves tokens as under sequence parallelism.
    shared_region = TensorRegion(group, sequence_parallel=True)
    for vocabulary_map in (model.model.embed_tokens, model.lm_head):
        if vocabulary_map is not None:
            vocabulary_map.region, vocabulary_map.vocabulary = region, ShardedVocabulary(group)
    if not sequence_parallel:
        for head in model.linear_heads.values():
            head.region = OwnTokens(group)
    for layer in model.layers:
        assert layer.self_attn.o_proj.bias is None, "a bias would be added once per rank"
        layer.self_attn.region = region
        if not isinstance(layer.mlp, MoE):
            layer.mlp.region = region
            continue
        layer.mlp.shared_experts.region = shared_region
        if not sequence_parallel:
            layer.mlp.region = OwnTokens(group)
