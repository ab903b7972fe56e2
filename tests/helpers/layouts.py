"""The tensors of a small model as a run of any layout holds them, without the model.

    tensors = lay_out(full_tensors(config), config, world)

Matrices are cut over tp, experts over ep, then `fully_shard` really is applied, so placements are FSDP2's own. A rank
of a pipeline holds its stage's layers; the first and the last stage both hold the embedding, which MTP reads too.
"""

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from glmforge.config.layout import Layout
from glmforge.config.model import ModelConfig
from glmforge.config.parameters import Parameter, ParameterTable, parameter_table
from glmforge.parallel.world import World


def uneven_config(**changes: object) -> ModelConfig:
    """Sizes that tp = 2 and ep = 2, 4 divide, and four fsdp ranks mostly do not: short and empty parts appear."""
    fields: dict[str, object] = {
        "vocab_size": 84,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "intermediate_size": 28,
        "moe_intermediate_size": 12,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "use_qk_norm": True,
        "rope_theta": 1e4,
        "max_position_embeddings": 64,
        "routed_scaling_factor": 2.5,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "num_nextn_predict_layers": 1,
        "eos_token_id": [3],
        "pad_token_id": 3,
    }
    return ModelConfig.model_validate(fields | changes)


def full_tensors(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Every tensor of the model, whole; correction biases are fp32 always."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(row.shape, generator=generator).to(torch.float32 if row.fp32 else dtype)
        for name, row in parameter_table(config).items()
    }


def lay_out(full: dict[str, Tensor], config: ModelConfig, world: World) -> dict[str, Tensor]:
    """This rank's tensors of the model `full`, by the same names; the values are copied."""
    table = parameter_table(config)
    held = [name for name in full if _is_held(table[name], config, world)]
    if world.size == 1:
        return {name: full[name].clone() for name in held}
    parameters = [name for name in held if table[name].trained]
    separate_experts = world.layout.ep * world.layout.tp > 1
    experts = [name for name in parameters if table[name].expert and separate_experts]
    dense = [name for name in parameters if name not in experts]
    holders = (
        _shard_dense({name: full[name] for name in dense}, table, world),
        _shard_experts({name: full[name] for name in experts}, world),
    )
    sharded = {name: tensor for holder in holders for name, tensor in holder.items()}
    return {name: sharded.get(name, full[name].clone()) for name in held}


def blank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors filled with a value that no test expects, in place."""
    with torch.no_grad():
        for tensor in tensors.values():
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).fill_(-77)
    return tensors


def _is_held(row: Parameter, config: ModelConfig, world: World) -> bool:
    pp, stage = world.layout.pp, world.axis_rank("pp")
    if row.layer is None:
        return stage in ((0, pp - 1) if row.family == "embedding" else (pp - 1,))
    first_of_stage = [config.num_hidden_layers * s // pp for s in range(pp)]
    return stage == max(s for s in range(pp) if first_of_stage[s] <= row.layer)


def _shard_dense(tensors: dict[str, Tensor], table: ParameterTable, world: World) -> dict[str, Tensor]:
    mesh = world.meshes["dense"]

    def cut(name: str, tensor: Tensor) -> Tensor:
        dim = table[name].tp_dim
        return tensor if dim is None or world.layout.tp == 1 else distribute_tensor(tensor, mesh["tp"], [Shard(dim)])

    return _fully_shard({name: cut(name, t) for name, t in tensors.items()}, mesh, world.layout, "fsdp", dim=0)


def _shard_experts(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    mesh, layout = world.meshes["expert"], world.layout
    if layout.ep > 1:
        tensors = {name: distribute_tensor(t, mesh["ep"], [Shard(0)]) for name, t in tensors.items()}
    num_local = next(iter(tensors.values())).shape[0] // layout.ep if tensors else 0
    return _fully_shard(tensors, mesh, layout, "efsdp", dim=0 if num_local % layout.efsdp == 0 else 1)


def _fully_shard(
    tensors: dict[str, Tensor], mesh: torch.distributed.DeviceMesh, layout: Layout, axis: str, *, dim: int
) -> dict[str, Tensor]:
    """FSDP2's shards of these tensors; on an axis of size 1 they stay as they are."""
    axes = ["dp_replicate", axis] if layout.dp_replicate > 1 else [axis]
    if not tensors or all(layout.size(a) == 1 for a in axes):
        return {name: _copy(tensor) for name, tensor in tensors.items()}
    holder = nn.Module()
    for name, tensor in tensors.items():
        holder.register_parameter(name.replace(".", "/"), nn.Parameter(_copy(tensor)))
    fully_shard(holder, mesh=mesh[tuple(axes)], shard_placement_fn=lambda _: Shard(dim))
    return {name.replace("/", "."): parameter.detach() for name, parameter in holder.named_parameters()}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
