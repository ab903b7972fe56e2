"""What is put into a map in the place of its matmul, an adapter or a quantised weight, works on every layout as it is.

Both are written once, for maps and packed experts alike, and know of no axis: regions and cuts are others' matter.
"""

import functools
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from glmforge.config.layout import resolve_layout
from glmforge.config.parameters import COMPLETE, OWN_SHARE, Parameter, ParameterTable, parameter_table
from glmforge.config.schema import RunConfig
from glmforge.kernels.documents import Documents
from glmforge.model.layers import Linear, Matmul, matmul
from glmforge.model.loss import CrossEntropyHead
from glmforge.model.moe import Experts
from glmforge.model.placement import local
from glmforge.model.transformer import Activations, GlmMoe
from glmforge.parallel.build import build_model
from glmforge.parallel.inputs import TokenShare
from glmforge.parallel.model import ParallelModel
from glmforge.parallel.placement import local_chunk
from glmforge.parallel.world import World, join_world
from helpers.distributed import RankFailure, run_ranks
from helpers.equivalence import differences, whole_state
from helpers.models import run_config, tiny_config

ROWS, LENGTHS, RANK = 4, (11, 21), 3


class LowRank(nn.Module):
    """What `base` gives, plus `x a^T b^T`."""

    def __init__(self, weight: Tensor, base: Matmul) -> None:
        super().__init__()
        *experts, num_out, num_in = weight.shape
        self.base = base
        self.a = nn.Parameter(torch.empty(*experts, RANK, num_in))
        self.b = nn.Parameter(torch.empty(*experts, num_out, RANK))

    def forward(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        low = matmul(x, local(self.a), counts_E=counts_E)
        return self.base(x, weight, bias=bias, counts_E=counts_E) + matmul(low, local(self.b), counts_E=counts_E)


class Int8(nn.Module):
    """A weight of integers with a scale for each output."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(weight.shape[:-1]), requires_grad=False)

    def forward(
        self, x: Tensor, weight: Tensor, *, bias: Tensor | None = None, counts_E: Tensor | None = None
    ) -> Tensor:
        return matmul(x, weight.to(x.dtype) * local(self.scale).unsqueeze(-1), bias=bias, counts_E=counts_E)


def low_rank_rows(weight: Parameter, prefix: str) -> Iterator[Parameter]:
    """The factor on the cut side of the weight is cut; ranks use the other one for outputs or inputs of their own."""
    *experts, num_out, num_in = weight.shape
    for name, shape, tp_dim in (
        ("a", (*experts, RANK, num_in), 1 if weight.tp_dim == 1 else None),
        ("b", (*experts, num_out, RANK), 0 if weight.tp_dim == 0 else None),
    ):
        partial = weight.partial if weight.tp_dim is None else COMPLETE if tp_dim is not None else OWN_SHARE
        row = replace(weight, name=prefix + name, shape=shape, tp_dim=tp_dim, partial=partial, num_fused=1)
        yield replace(row, expert_parts=())


def int8_rows(weight: Parameter, prefix: str) -> Iterator[Parameter]:
    row = replace(weight, name=f"{prefix}scale", shape=weight.shape[:-1], initial="ones", family="vector", num_fused=1)
    yield replace(row, tp_dim=0 if weight.tp_dim == 0 else None, expert_parts=())


def maps(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, str]]:
    """Name and module of every map, and what its matmul and its weight are called there."""
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield name, module, "matmul", "weight"
        if isinstance(module, Experts):
            yield name, module, "gate_up_matmul", "gate_up_proj"
            yield name, module, "down_matmul", "down_proj"


def put_int8(model: GlmMoe) -> None:
    for _, module, attribute, name in list(maps(model)):
        weight = getattr(module, name)
        setattr(module, name, nn.Parameter(torch.empty_like(weight, dtype=torch.int8), requires_grad=False))
        setattr(module, attribute, Int8(weight))


def put_low_rank(model: GlmMoe) -> None:
    for _, module, attribute, name in list(maps(model)):
        setattr(module, attribute, LowRank(getattr(module, name), getattr(module, attribute)))


def put_both(model: GlmMoe) -> None:
    put_int8(model)
    put_low_rank(model)


PARTS = {"low rank": put_low_rank, "int8": put_int8, "low rank on int8": put_both}


def table_with(part: str, config: RunConfig) -> ParameterTable:
    table = parameter_table(config.model)
    with torch.device("meta"):
        model = GlmMoe(config.model)
    rows: list[Parameter] = []
    for module, _, attribute, name in maps(model):
        prefix, weight = f"{module}.{attribute}.", table[f"{module}.{name}"]
        if "low rank" in part:
            rows += low_rank_rows(weight, prefix)
        if "int8" in part:
            rows += int8_rows(weight, prefix + "base." * ("low rank" in part))
    return table.extended(rows)


@torch.no_grad()
def fill(model: ParallelModel) -> None:
    """Give every parameter values by its name, the same ones whatever is here of it."""
    for name, tensor in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        whole = torch.randn(tensor.shape, generator=generator)
        if tensor.dtype == torch.int8:
            whole = (whole * 40).clamp(-127, 127).round()
        elif name.endswith("scale"):
            whole = 0.004 * (1 + whole.abs())
        elif name.endswith("norm.weight"):
            whole = 1 + 0.1 * whole
        else:
            whole = 0.2 * whole
        here, offsets = local_chunk(tensor)
        here.copy_(whole[tuple(slice(o, o + n) for o, n in zip(offsets, here.shape, strict=True))])


def losses_and_gradients(part: str, config: RunConfig, world: World) -> dict[str, Tensor]:
    """Of one batch; whole on every rank."""
    model = build_model(config, world, table=table_with(part, config), extend=PARTS[part])
    fill(model)
    ids = torch.randint(0, 512, (ROWS, sum(LENGTHS) + 1), generator=torch.Generator().manual_seed(7))
    num_rows = ROWS // world.layout.data_ranks
    mine = ids[world.data_rank * num_rows :][:num_rows]
    documents = Documents.from_lengths(LENGTHS * num_rows)
    share = TokenShare(num_rows, sum(LENGTHS), world, config.parallel)
    head = CrossEntropyHead.whole(mine[:, 1:], documents, num_mtp_layers=1)
    total = torch.zeros((), dtype=torch.float64)

    def forward(section: GlmMoe, index: int, received: Activations | None) -> tuple[Tensor, Activations | None]:
        output = section(share.inputs(mine[:, :-1], documents, 1), received, head=head)
        loss = (output.main.sum + output.mtp[0].sum) / ids.numel()
        total.add_(loss.detach())
        return loss, None

    model.run(forward, 1, (num_rows, sum(LENGTHS)), num_mtp=1, backward=True)
    model.finish_gradients()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": world.sum(total), **whole_state(gradients)}


def run_of(parallel: dict[str, Any]) -> RunConfig:
    return run_config(model=tiny_config(num_hidden_layers=2).model_dump(), parallel=parallel)


def on_ranks(parallel: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    config = run_of(parallel)
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        return {part: losses_and_gradients(part, config, world) for part in PARTS}


@functools.cache
def on_one(part: str) -> dict[str, Tensor]:
    config = run_of({})
    return losses_and_gradients(part, config, World(0, 1, torch.device("cpu"), resolve_layout(config, 1)))


@pytest.mark.parametrize(
    "parallel", [{"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"ep": 2}], ids=["tp2", "tp2-whole-tokens", "ep2"]
)
def test_what_is_put_into_maps_needs_no_layout_of_its_own(parallel: dict[str, Any]) -> None:
    actual = run_ranks(on_ranks, 2, parallel)[0]
    for part in PARTS:
        expected = on_one(part)
        factors = [name for name in expected if name.endswith((".a", ".b"))]
        assert bool(factors) == ("low rank" in part)
        assert all(expected[name].norm() > 0 for name in factors)
        # As layouts of the model alone: rounding of sums in another order.
        errors = differences(actual[part], expected)
        assert max(errors.values()) < 1e-5, (part, max(errors, key=errors.__getitem__))


def forget_partial_sums(parallel: dict[str, Any]) -> None:
    globals()["OWN_SHARE"] = COMPLETE
    on_ranks(parallel)


def test_a_factor_that_the_table_takes_for_complete_is_seen() -> None:
    with pytest.raises(RankFailure, match=r"q_proj\.matmul\.a: ranks that hold copies of a part differ"):
        run_ranks(forget_partial_sums, 2, {"tp": 2})
