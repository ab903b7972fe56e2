"""FSDP2 and HSDP on gloo change nothing: initial weights, loss, every gradient and router counts equal one process."""

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from glmforge.kernels.documents import Documents
from glmforge.model.loss import CrossEntropyHead
from glmforge.parallel.build import build_model
from glmforge.parallel.world import World, join_world
from helpers.distributed import run_ranks
from helpers.models import run_config

NUM_ROWS, SEQ_LEN = 8, 16


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids_BS = torch.randint(0, 509, (NUM_ROWS, SEQ_LEN + 1), generator=generator)
    return ids_BS[:, :-1], ids_BS[:, 1:]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def step(world: World, compute: str, compile_layers: bool = False) -> dict[str, Tensor]:
    """Summed loss, counts, whole weights and whole gradients after one backward pass on this rank's rows."""
    config = run_config(precision={"compute": compute}, parallel={"compile": compile_layers}, model=odd_model())
    model = build_model(config, world)
    results = {f"weight.{name}": whole(p) for name, p in model.named_parameters()}
    share = NUM_ROWS // world.size
    ids_BS, labels_BS = (x[world.rank * share : (world.rank + 1) * share] for x in batch())
    documents = Documents.from_lengths([5, SEQ_LEN - 5] * share)
    output = model(ids_BS, documents, head=CrossEntropyHead(labels_BS, documents), with_aux_loss=True)
    loss = output.main + 0.3 * output.mtp[0] + output.router.aux_loss
    loss.backward()
    results["loss"] = world.sum(loss.detach().clone())
    results["counts"] = world.sum(output.router.counts_LE.clone())
    results |= {f"gradient.{name}": whole(p.grad) for name, p in model.named_parameters()}
    return results


def odd_model() -> dict:
    """Five experts and an odd vocabulary: dim 0 divides by no number of ranks, some shards are smaller or empty."""
    config = run_config().model.model_dump()
    return config | {"n_routed_experts": 5, "vocab_size": 509, "num_hidden_layers": 3}


def rank_step(dp_replicate: int, dp_shard: int, compute: str, compile_layers: bool) -> dict[str, Tensor]:
    with join_world(dp_replicate, dp_shard, timeout_s=60) as world:
        return step(world, compute, compile_layers)


@pytest.mark.parametrize(
    ("dp_replicate", "dp_shard", "compute"),
    [(1, 2, "fp32"), (1, 4, "fp32"), (2, 2, "fp32"), (2, 1, "fp32"), (1, 2, "bf16")],
)
def test_one_backward_pass_equals_a_single_process(dp_replicate: int, dp_shard: int, compute: str) -> None:
    expected = step(World.single("cpu"), compute)
    for results in run_ranks(rank_step, dp_replicate * dp_shard, dp_replicate, dp_shard, compute, False):
        assert results.keys() == expected.keys()
        for name, value in results.items():
            if name.startswith("weight.") or name == "counts":
                assert torch.equal(value, expected[name]), name
                continue
            # fp32: sums over ranks in another order. bf16: per-rank partial gradients are rounded to bf16 (2^-9
            # relative each) before their fp32 sum.
            tolerance = 1e-5 if compute == "fp32" else 1e-2
            error = (value - expected[name]).norm() / expected[name].norm().clamp_min(1e-12)
            assert error < tolerance, f"{name}: {error:.2e}"


def test_router_keeps_fp32_weights_under_bf16() -> None:
    assert all(run_ranks(rank_router_dtype, 2))


def rank_router_dtype() -> bool:
    with join_world(1, 2, timeout_s=60) as world:
        model = build_model(run_config(precision={"compute": "bf16"}), world)
        gate = model.trunk_layers[1].mlp.gate
        seen: list[torch.dtype] = []
        gate.register_forward_pre_hook(lambda module, _: seen.append(module.weight.dtype))
        model(batch()[0][:2])
        return seen == [torch.float32]
