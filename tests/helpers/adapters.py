"""Small adapters for tests: their tensors, cut as layouts cut them, with what a checkpoint of them says beside."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from glmforge.checkpoint.adapter.write import AdapterInfo
from glmforge.checkpoint.format.sharded_adapter import BaseWeights
from glmforge.config.lora import LoraConfig
from helpers.models import tiny_config

NUM_EXPERTS, RANK, INPUTS, OUTPUTS = 6, 4, 10, 14
BASE = BaseWeights(source="models/base", fingerprint="0" * 64, num_tensors=3)
LORA = LoraConfig(rank=RANK, alpha=8.0, targets=("q_proj", "experts.down_proj"))

SHAPES = {
    "model.layers.0.self_attn.q_proj.lora_A.weight": (RANK, INPUTS),
    "model.layers.0.self_attn.q_proj.lora_B.weight": (OUTPUTS, RANK),
    "model.layers.1.self_attn.q_proj.lora_A.weight": (RANK, INPUTS),
    "model.layers.1.self_attn.q_proj.lora_B.weight": (OUTPUTS, RANK),
    "model.layers.1.mlp.experts.lora_A.down_proj": (NUM_EXPERTS, RANK, INPUTS),
    "model.layers.1.mlp.experts.lora_B.down_proj": (NUM_EXPERTS, OUTPUTS, RANK),
}


def make_info(mode: str = "full", **changes: object) -> AdapterInfo:
    return AdapterInfo(**({"model": tiny_config(), "lora": LORA, "mode": mode, "base": BASE} | changes))  # type: ignore[arg-type]


def whole_tensors(step: int) -> dict[str, Tensor]:
    """What a run saves of these adapters: parameters and two states of each; another in every step."""
    generator = torch.Generator().manual_seed(step)
    tensors = {f"model.{name}": torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    for state in ("exp_avg", "exp_avg_sq"):
        tensors |= {f"optim.{state}.{name}": torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    return tensors | {"optim.step": torch.tensor(step)}


def laid_out(whole: dict[str, Tensor], layout: str) -> dict[str, Tensor]:
    """This rank's part of the tensors: of FSDP uneven shards, copies, cuts by tp or ep, other layers."""
    size = dist.get_world_size()
    if layout == "plain":
        return {name: tensor.clone() for name, tensor in whole.items()}
    if layout == "fsdp":
        mesh = init_device_mesh("cpu", (size,))
        return {n: distribute_tensor(t, mesh, [Shard(0)]) if t.dim() else t.clone() for n, t in whole.items()}
    if layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2))
        places = [Replicate(), Shard(0)]
        return {n: distribute_tensor(t, mesh, places) if t.dim() else t.clone() for n, t in whole.items()}
    if layout == "tp":  # the last dim by tp, dim 0 by FSDP
        mesh = init_device_mesh("cpu", (size // 2, 2))
        cut = [Shard(0), Shard(1)]
        return {n: distribute_tensor(t, mesh, cut) if t.dim() else t.clone() for n, t in whole.items()}
    if layout == "ep":  # experts by ep, all else whole on every rank
        mesh = init_device_mesh("cpu", (size,))
        return {n: distribute_tensor(t, mesh, [Shard(0)]) if ".experts." in n else t.clone() for n, t in whole.items()}
    assert layout == "pp", layout  # a layer on each of the first two ranks, nothing on the others
    own = {n: t.clone() for n, t in whole.items() if f"layers.{dist.get_rank()}." in n}
    return own | {n: t.clone() for n, t in whole.items() if own and "layers." not in n}


def blank(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What they are loaded into."""
    return {name: tensor.clone().fill_(-1) for name, tensor in tensors.items()}


def assert_holds(tensors: dict[str, Tensor], step: int) -> None:
    """Bit for bit, all of what this rank has."""
    expected = laid_out_like(tensors, whole_tensors(step))
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(local, expected[name]), name


def laid_out_like(tensors: dict[str, Tensor], whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of `whole` that the tensors are, as plain tensors."""
    return {
        name: distribute_tensor(whole[name], t.device_mesh, t.placements).to_local()
        if isinstance(t, DTensor)
        else whole[name]
        for name, t in tensors.items()
    }
