"""Halves of a micro-batch in turn (`parallel.ep_overlap`): the same steps, with exchanges beside computation."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from glmforge.backend.native import NativeBackend
from glmforge.config.layout import resolve_layout
from glmforge.model.block import DecoderLayer
from glmforge.model.layers import SwiGLU
from glmforge.model.moe import Experts
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel import collectives
from glmforge.parallel.collectives import Exchange
from glmforge.parallel.world import join_world
from helpers.distributed import run_ranks
from helpers.equivalence import Case, batches, differences, rank_case, single_case

TOLERANCE = 1e-5
"""As in test_equivalence.py."""

OVERLAP = {"ep_overlap": True}
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1}

USUAL = [Case({"ep": 2, "recompute": "full", "micro_batch_size": 4} | OVERLAP, 2)]
MATRIX = [
    Case({"dp_shard": 2, "tp": 2, "ep": 2, "recompute": "selective", "micro_batch_size": 2} | OVERLAP, 4),
    Case({"ep": 2} | OVERLAP, 2),
    Case({"ep": 2, "tp": 2, "sequence_parallel": False, "micro_batch_size": 4} | OVERLAP, 2),
    Case({"ep": 4, "dp_shard": 4, "micro_batch_size": 2, "recompute": "selective"} | OVERLAP, 4),
    Case({"ep": 2, "dp_shard": 4, "micro_batch_size": 2, "recompute": "full"} | OVERLAP, 4),
    Case({"ep": 2, "dp_shard": 4, "reduce_gradients": "last_micro_batch"} | OVERLAP, 4),
    Case({"ep": 2, "dp_replicate": 2, "dp_shard": 2, "reshard_after_forward": False} | OVERLAP, 4),
    Case({"cp": 2, "dp_shard": 2, "ep": 4, "micro_batch_size": 2} | OVERLAP, 4),
    Case({"cp": 2, "ep": 2, "context_method": "ulysses", "recompute": "full"} | OVERLAP, 2),
    Case({"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 2} | OVERLAP, 4),
    Case(
        {"pp": 2, "tp": 2, "ep": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"} | OVERLAP,
        4,
        model={"num_nextn_predict_layers": 2},
    ),
    Case({"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 2, "pipeline_schedule": "zbv"} | OVERLAP, 4),
    Case({"pp": 2, "tp": 2, "ep": 2, "micro_batch_size": 2, "pipeline_schedule": "dualpipev"} | OVERLAP, 4),
    Case({"ep": 2, "tp": 2, "recompute": "full"} | OVERLAP, 2, phase={"balance": "sinkhorn"}, regularization=DROPOUT),
    Case({"ep": 2, "activation_offload": True, "recompute": "full"} | OVERLAP, 2),
    Case({"tp": 2, "ep": 2, "compile": True} | OVERLAP, 2),
    Case({"dp_shard": 4, "tp": 2, "ep": 4, "micro_batch_size": 2, "recompute": "selective"} | OVERLAP, 8),
]


_expected: dict[str, dict[str, Tensor]] = {}


def largest_error(actual: dict[str, Tensor], case: Case) -> tuple[str, float]:
    """Against one process, which runs once for all cases that differ in their layout only."""
    run = case.config(single=True).model_dump_json()
    if run not in _expected:
        _expected[run] = single_case(case)
    return max(differences(actual, _expected[run]).items(), key=lambda error: error[1])


@pytest.mark.parametrize(
    "case", [*USUAL, *(pytest.param(case, marks=pytest.mark.full) for case in MATRIX)], ids=lambda case: case.name
)
def test_three_steps_equal_one_process(case: Case) -> None:
    name, error = largest_error(run_ranks(rank_case, case.world_size, case, timeout_s=300)[0], case)
    assert error < TOLERANCE, name


class _Mark(torch.autograd.Function):
    """Notes when what comes before it was computed, and when its gradient begins to be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, events: list[str]) -> Tensor:
        ctx.name, ctx.events = name, events
        events.append(name)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        ctx.events.append(ctx.name)
        return grad, None, None


def record(events: list[str]) -> None:
    """Note what the two halves, A and B, compute, and when an exchange of theirs is started and waited for."""
    numbers: dict[str, int] = {}

    def name_of(what: str) -> str:
        numbers[what] = numbers.get(what, -1) + 1
        return f"{what} {'AB'[numbers[what] % 2]}"

    attended, swiglu, shared = DecoderLayer._attended, Experts.swiglu, SwiGLU.forward

    def noted_attention(self: DecoderLayer, *args: Any) -> tuple[Tensor, Tensor]:
        x_TD, normed_TD = attended(self, *args)
        return x_TD, _Mark.apply(normed_TD, name_of("attention"), events)

    DecoderLayer._attended = noted_attention  # type: ignore[method-assign]
    Experts.swiglu = lambda self, *args: _Mark.apply(swiglu(self, *args), name_of("experts"), events)  # type: ignore
    SwiGLU.forward = lambda self, x_TD: _Mark.apply(shared(self, x_TD), name_of("shared"), events)  # type: ignore

    directions = iter(["there", "there", "back", "back"])
    start = Exchange.start

    def named_start(self: Exchange, x: Tensor) -> Tensor:
        self.name = name_of(next(directions))  # type: ignore[attr-defined]
        return start(self, x)

    Exchange.start = named_start  # type: ignore[method-assign]
    steps = {"start": (collectives._Start.forward, collectives._Finish.backward)}
    steps["wait"] = collectives._Finish.forward, collectives._Start.backward

    def noted_forward(function: Callable[..., Any], what: str) -> Any:
        def forward(ctx: Any, x: Tensor, exchange: Any) -> Tensor:
            events.append(f"{what} {exchange.name}")
            return function(ctx, x, exchange)

        return staticmethod(forward)

    def noted_backward(function: Callable[..., Any], what: str) -> Any:
        def backward(ctx: Any, grad: Tensor) -> Any:
            events.append(f"{what} {ctx.exchange.name}")
            return function(ctx, grad)

        return staticmethod(backward)

    collectives._Start.forward = noted_forward(steps["start"][0], "start")  # type: ignore[method-assign]
    collectives._Finish.backward = noted_backward(steps["start"][1], "start")  # type: ignore[method-assign]
    collectives._Finish.forward = noted_forward(steps["wait"][0], "wait")  # type: ignore[method-assign]
    collectives._Start.backward = noted_backward(steps["wait"][1], "wait")  # type: ignore[method-assign]


def rank_events(parallel: dict[str, Any]) -> list[str]:
    """Of one MoE layer over one micro-batch, forward and backward."""
    model = {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
    config = Case(parallel | OVERLAP, dist.get_world_size(), model=model).config(single=False)
    events: list[str] = []
    with join_world(resolve_layout(config, dist.get_world_size()), timeout_s=60) as world:
        backend = NativeBackend.build(config, world)
        objective = NextTokenObjective(config.phases[0], num_mtp_layers=0)
        num_rows = config.phases[0].batch_size // world.layout.data_ranks
        record(events)
        first = world.data_rank * num_rows
        backend.accumulate(objective, [batches(config)[0].rows(first, first + num_rows)])
    return events


FORWARD = [
    *("attention A", "start there A", "attention B", "start there B", "wait there A", "experts A", "start back A"),
    *("wait there B", "experts B", "start back B", "shared A", "shared B", "wait back A", "wait back B"),
]


def mirrored(events: Sequence[str]) -> list[str]:
    """In reverse, where what was waited for is started and what was started is waited for."""
    swapped = {"start": "wait", "wait": "start"}
    return [" ".join(swapped.get(word, word) for word in event.split()) for event in reversed(events)]


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        (2, {"ep": 2}),
        pytest.param(2, {"ep": 2, "tp": 2}, marks=pytest.mark.full),
        # Experts, routers and layers are FSDP units
        pytest.param(4, {"ep": 2, "dp_shard": 4}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_one_half_computes_while_the_others_rows_travel(world_size: int, parallel: dict[str, Any]) -> None:
    for events in run_ranks(rank_events, world_size, parallel):
        assert events == FORWARD + mirrored(FORWARD)
