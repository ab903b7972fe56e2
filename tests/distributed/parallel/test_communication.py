"""Collectives are counted on the axis they run on, wherever they are called from, and their time is seen."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from glmforge.config.layout import Layout
from glmforge.parallel.communication import (
    Collective,
    CollectiveObserver,
    GroupAxes,
    Traffic,
    measure_communication,
    parse_trace,
    seconds_by_axis,
    traffic_by_axis,
)
from glmforge.parallel.world import World
from helpers.distributed import run_ranks

CPU = torch.device("cpu")
FP32 = 4  # bytes


def observed(world: World, *calls) -> list[list[Collective]]:
    """What each call communicates."""
    found = []
    for call in calls:
        seen: list[Collective] = []
        with CollectiveObserver(GroupAxes.of(world), seen.append):
            call()
        found.append(seen)
    return found


def rank_every_collective() -> list[list[Collective]]:
    world = World.join(Layout(dp_shard=2, tp=2), CPU)
    tp, fsdp = world.group("tp"), world.group("fsdp")
    four, eight = torch.ones(4), torch.ones(8)
    peer = dist.get_global_rank(tp, 1 - world.axis_rank("tp"))

    def exchange() -> None:
        ops = [dist.P2POp(dist.isend, four, peer, tp), dist.P2POp(dist.irecv, torch.empty(4), peer, tp)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return observed(
        world,
        lambda: dist.all_reduce(four, group=tp),
        lambda: dist.all_reduce(four.bfloat16(), group=fsdp, async_op=True).wait(),
        lambda: dist.all_reduce(four),
        lambda: dist.all_gather_into_tensor(eight, four, group=fsdp),
        lambda: dist.all_gather([torch.empty(4), torch.empty(4)], four, group=tp),
        lambda: dist.reduce_scatter_tensor(four, eight, group=tp),
        lambda: dist.all_to_all_single(torch.empty(8), eight, group=tp),
        lambda: dist.all_to_all_single(torch.empty(6), torch.ones(6), [3, 3], [3, 3], group=tp),
        lambda: dist.broadcast(four, group=tp, group_src=0),
        lambda: dist.barrier(group=fsdp),
        exchange,
        lambda: functional.all_reduce(four, "sum", tp) + 1,
        lambda: functional.all_gather_tensor(four, 0, fsdp) + 1,
        lambda: functional.reduce_scatter_tensor(eight, "sum", 0, tp) + 1,
        lambda: functional.all_to_all_single(eight, None, None, tp) + 1,
    )


def test_every_collective_is_named_with_its_axis_and_bytes() -> None:
    for found in run_ranks(rank_every_collective, 4):
        assert found == [
            [("all_reduce", "tp", 4 * FP32)],
            [("all_reduce", "fsdp", 4 * 2)],
            [("all_reduce", "other", 4 * FP32)],
            [("all_gather", "fsdp", 8 * FP32)],
            [("all_gather", "tp", 8 * FP32)],
            [("reduce_scatter", "tp", 8 * FP32)],
            [("all_to_all", "tp", 8 * FP32)],
            [("all_to_all", "tp", 6 * FP32)],
            [("broadcast", "tp", 4 * FP32)],
            [("barrier", "fsdp", 0)],
            [("send", "tp", 4 * FP32), ("recv", "tp", 4 * FP32)],
            [("all_reduce", "tp", 4 * FP32)],
            [("all_gather", "fsdp", 8 * FP32)],
            [("reduce_scatter", "tp", 8 * FP32)],
            [("all_to_all", "tp", 8 * FP32)],
        ]


def rank_hidden_collectives() -> list[Counter]:
    world = World.join(Layout(dp_shard=2, tp=2), CPU)
    mesh = world.meshes["dense"]["tp"]
    x = torch.ones(4, requires_grad=True)
    sharded = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])

    def through_autograd() -> None:
        functional.all_gather_tensor_autograd(x, 0, world.group("tp")).sum().backward()

    def through_dtensor() -> None:
        sharded.redistribute(mesh, [Replicate()]).to_local().add(1)

    def inside_an_operator() -> None:
        sharded + distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)], src_data_rank=None)

    return [Counter(calls) for calls in observed(world, through_autograd, through_dtensor, inside_an_operator)]


def test_collectives_of_autograd_and_dtensor_are_seen() -> None:
    autograd, dtensor, operator = run_ranks(rank_hidden_collectives, 4)[0]
    assert autograd == {("all_gather", "tp", 8 * FP32): 1, ("reduce_scatter", "tp", 8 * FP32): 1}
    assert dtensor == {("all_gather", "tp", 16 * FP32): 1}
    # How DTensor moves one operand from rows to columns is its own affair.
    assert [axis for _, axis, _ in operator.elements()] == ["tp"]


def rank_compiled() -> list[list[Collective]]:
    world = World.join(Layout(tp=2), CPU)

    @torch.compile(backend="aot_eager")
    def partial_sum(x: Tensor) -> Tensor:
        return functional.all_reduce(x.relu(), "sum", world.group("tp")) + 1

    return observed(world, lambda: partial_sum(torch.ones(4)), lambda: partial_sum(torch.ones(4)))


def test_collectives_of_compiled_code_are_seen_once_per_run() -> None:
    assert run_ranks(rank_compiled, 2)[0] == [[("all_reduce", "tp", 4 * FP32)]] * 2


def two_layers(world: World) -> nn.Module:
    """Two linear layers of 8 x 8 + 8 elements, each a unit of FSDP2, over `fsdp`."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for module in (*model, model):
        fully_shard(module, mesh=world.meshes["dense"]["fsdp"])
    return model


def rank_fsdp_step() -> tuple[dict[str, Traffic], Counter]:
    world = World.join(Layout(dp_shard=2, tp=2), CPU)
    model = two_layers(world)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        world.sum(model(torch.ones(2, 8)).sum().backward() or torch.ones(3))
        dist.all_reduce(torch.ones(5), group=world.group("tp"))
        optimizer.step()

    with measure_communication(world) as traffic:
        step()
    return traffic, Counter(call.op for call in observed(world, step)[0] if call.axis == "fsdp")


def test_a_measured_fsdp_step() -> None:
    whole = (8 * 8 + 8) * FP32
    for traffic, operations in run_ranks(rank_fsdp_step, 4):
        # Both layers are gathered forward and again backward.
        assert operations == {"all_gather": 4, "reduce_scatter": 2}
        assert {axis: (t.calls, t.bytes) for axis, t in traffic.items()} == {
            "fsdp": (6, 6 * whole),
            "tp": (1, 5 * FP32),
            "other": (1, 3 * FP32),
        }
        assert all(t.seconds > 0 for t in traffic.values())


def test_a_single_process_communicates_nothing() -> None:
    with measure_communication(World.single("cpu")) as traffic:
        torch.ones(2).sum()
    assert traffic == {}


def test_an_error_in_the_measured_block_leaves_nothing_behind() -> None:
    assert all(run_ranks(rank_error_while_measuring, 2))


def rank_error_while_measuring() -> bool:
    world = World.join(Layout(tp=2), CPU)
    with pytest.raises(RuntimeError, match="planned"), measure_communication(world):
        raise RuntimeError("planned")
    with measure_communication(world) as traffic:
        dist.all_reduce(torch.ones(1))
    return sum(t.calls for t in traffic.values()) == 1


def fake_rank_step() -> list[Collective]:
    """One of 512 ranks, on tensors without memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=77, world_size=512)
    world = World.join(Layout(pp=2, dp_shard=32, tp=8, ep=32), CPU)
    model = two_layers(world)
    seen: list[Collective] = []
    with FakeTensorMode(allow_non_fake_inputs=True), CollectiveObserver(GroupAxes.of(world), seen.append):
        model.to_empty(device="cpu")
        model(torch.ones(2, 8)).sum().backward()
        rows = torch.ones(16, 2, requires_grad=True)
        functional.all_to_all_single_autograd(rows, [0] * 31 + [16], [16] + [0] * 31, world.group("ep"))
        functional.all_reduce(torch.ones(3), "sum", world.group("tp"))
        dist.all_reduce(torch.ones(3), group=world.group("efsdp"))
        dist.send(torch.ones(7), group=world.group("pp"), group_dst=1 - world.axis_rank("pp"))
        world.sum(torch.ones(2))
    return seen


def rank_fake() -> dict[str, Traffic]:
    return traffic_by_axis(fake_rank_step())


def test_a_dry_run_counts_the_same_without_peers_or_memory() -> None:
    (traffic,) = run_ranks(rank_fake, 1, init_group=False)
    whole = 72 * FP32
    assert {axis: (t.calls, t.bytes) for axis, t in traffic.items()} == {
        # 8 rows over 32 ranks are padded to 32 rows: (32 x 8 + 32) elements.
        "fsdp": (6, 6 * 4 * whole),
        "ep": (1, 16 * 2 * FP32),
        "tp": (1, 3 * FP32),
        "efsdp": (1, 3 * FP32),
        "pp": (1, 7 * FP32),
        "other": (1, 2 * FP32),
    }
    assert all(t.seconds is None for t in traffic.values())


@pytest.mark.parametrize(
    ("group", "op", "axis"),
    [
        ("7", "all_gather", "tp"),
        ("7", "all_to_all", "tp"),  # a group of one axis: whatever it does
        ("3", "send", "pp"),
        ("12", "all_reduce", "other"),
        ("0", "all_gather", "fsdp"),
        ("0", "all_to_all", "ep"),
        ("0", "", "fsdp"),  # an unknown operation
        ("0", "all_reduce", "other"),  # what FSDP and EP do not do, but the trainer does over all ranks
    ],
)
def test_axes_that_share_the_default_group(group: str, op: str, axis: str) -> None:
    axes = GroupAxes({"tp": "7", "efsdp": "0", "fsdp": "0", "ep": "0", "pp": "3"}, default="0")
    assert axes.axis(group, op) == axis


def kernel(group: str, start: float, duration: float, op: str = "allreduce") -> dict:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
        "ts": start,
        "dur": duration,
        "args": {"Process Group Name": group, "Collective name": op},
    }


def test_seconds_from_kernels_of_nccl() -> None:
    axes = GroupAxes({"tp": "7", "fsdp": "9", "ep": "9"}, default="9")
    events = [
        {"ph": "M", "name": "process_name"},
        kernel("7", 0, 10),
        kernel("7", 5, 10),  # overlaps the first: together 15
        kernel("7", 100, 1),
        kernel("9", 0, 3, "_allgather_base"),
        kernel("9", 7, 4, "all_to_allv"),
        kernel("33", 0, 2),
        kernel("7", 0, 1000) | {"name": "ampere_bf16_gemm"},
        kernel("7", 0, 1000) | {"cat": "cpu_op", "name": "nccl:all_reduce"},
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 50, "dur": 5},
    ]
    expected = {"tp": 16e-6, "fsdp": 3e-6, "ep": 4e-6, "other": 7e-6}
    assert seconds_by_axis(events, axes) == pytest.approx(expected)


def test_a_trace_with_kinetos_gaps_is_read() -> None:
    assert parse_trace(b'{"traceEvents": [{"args": {"a": , "b": 1, "c": }}]}') == [{"args": {"a": "", "b": 1, "c": ""}}]


def test_a_broken_trace_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="not timed"):
        assert parse_trace(b'{"traceEvents": [') == []


def test_seconds_from_operations_of_gloo() -> None:
    def event(name: str, start: float, duration: float, thread: int = 1) -> dict:
        return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": duration, "tid": thread}

    events = [
        event("gloo:barrier", 0, 1, 2),  # before any marked call
        event("glmforge.communication:7|all_reduce", 10, 5),
        event("gloo:all_reduce", 16, 1, 3),  # begins after its call has returned
        event("glmforge.communication:7|all_reduce", 20, 5),
        event("gloo:all_reduce", 21, 4, 3),
        event("glmforge.communication:7|all_reduce", 30, 5),
        event("glmforge.communication:9|all_gather", 36, 1),
        event("gloo:all_reduce", 37, 20, 3),  # begins after the next call, but on the thread of group 7
        event("gloo:all_gather", 38, 7, 4),
        event("glmforge.communication:3|send", 70, 2),
        event("gloo:send", 71, 500),
        event("glmforge.communication:3|recv", 72, 2),
        event("gloo:recv", 73, 8),
        event("glmforge.communication:7|recv", 90, 2),
        event("gloo:recv", 91, 6),  # the calling thread serves all groups
    ]
    axes = GroupAxes({"tp": "7", "fsdp": "9", "pp": "3"})
    expected = {"other": 1e-6, "tp": 31e-6, "fsdp": 7e-6, "pp": 8e-6}
    assert seconds_by_axis(events, axes) == pytest.approx(expected)


def test_measuring_changes_no_result() -> None:
    assert all(run_ranks(rank_same_gradients, 2))


def rank_same_gradients() -> bool:
    world = World.join(Layout(dp_shard=2), CPU)
    model = two_layers(world)
    gradients = []
    for measured in (False, True):
        model.zero_grad()
        if measured:
            with measure_communication(world):
                model(torch.ones(2, 8)).square().sum().backward()
        else:
            model(torch.ones(2, 8)).square().sum().backward()
        gradients.append([p.grad.full_tensor() for p in model.parameters()])
    return all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
