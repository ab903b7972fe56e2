"""Every moment of a step goes to one part: on made traces, where all is known."""

from typing import Any

import pytest
import torch

from glmforge.doctor.profile.account import account
from glmforge.doctor.profile.ranges import marked
from glmforge.model.moe import Experts
from glmforge.parallel.communication import GroupAxes

AXES = GroupAxes({"fsdp": "1", "ep": "2"})
HOST, AUTOGRAD, NETWORK = 10, 11, 12
NODE = "autograd::engine::evaluate_function: MmBackward0"


def event(name: str, start: float, stop: float, tid: int = HOST, cat: str = "user_annotation", **args: Any) -> Any:
    return {"ph": "X", "name": name, "ts": start, "dur": stop - start, "tid": tid, "cat": cat, "args": args}


def op(name: str, start: float, stop: float, tid: int = HOST, sequence: int | None = None) -> Any:
    numbers = {} if sequence is None else {"Sequence number": sequence}
    return event(name, start, stop, tid, "cpu_op", **numbers)


def seconds(found: dict[Any, Any]) -> dict[Any, float]:
    """In microseconds, without what is nothing."""
    flat = {(name, way): value for name, both in found.items() for way, value in both.items()}
    return {key: pytest.approx(value * 1e6) for key, value in flat.items() if value}


def test_a_step_on_a_cpu() -> None:
    trace = [
        event("glmforge.step", 0, 1000),
        event("glmforge.phase:data", 10, 60),
        event("glmforge.phase:attention", 20, 40),  # of a source that asks the model
        event("glmforge.phase:other model", 100, 400),
        event("glmforge.phase:experts", 150, 250),
        op("aten::detach", 140, 149, sequence=7),  # makes no node: the next operation does, and has its number
        op("aten::mm", 151, 250, sequence=7),
        op("aten::mm", 300, 400, sequence=8),
        event("glmforge.communication:2|all_to_all", 250, 260),  # within the model: the call, then a wait
        op("_c10d_functional::wait_tensor", 260, 300),
        event("gloo:all_to_all", 252, 310, NETWORK),
        event("glmforge.backward", 500, 800),
        op(NODE, 510, 600, sequence=8),
        op(NODE, 610, 700, sequence=7),
        event("glmforge.phase:attention", 620, 650),  # within a node of the experts: computed again
        op(NODE, 710, 730),  # without a number: as the one before
        event("glmforge.phase:optimizer", 800, 900),
    ]
    found = account(trace, AXES)
    assert seconds(found.phases) == {
        ("data", "forward"): 50,
        ("other model", "forward"): 150,
        ("experts", "forward"): 100,
        ("other model", "backward"): 190,  # its node, and autograd's own time between nodes
        ("experts", "backward"): 80,
        ("recompute", "backward"): 30,
        ("optimizer", "forward"): 100,
        ("idle", "forward"): 250,
    }
    assert found.exposed == {"ep": pytest.approx(50e-6)}
    assert found.hidden == {"ep": pytest.approx(10e-6)}
    assert found.total == pytest.approx(1000e-6)


def test_a_wait_belongs_to_the_axis_that_is_under_way() -> None:
    trace = [
        event("glmforge.step", 0, 100),
        event("glmforge.communication:1|all_gather", 5, 10),
        event("gloo:all_gather", 6, 60, NETWORK),
        event("glmforge.communication:2|all_to_all", 20, 25),
        event("gloo:all_to_all", 21, 24, NETWORK + 1),
        event("glmforge.wait", 30, 70),  # for the gather, though the exchange was called last
    ]
    found = account(trace, AXES)
    # 5 of the call, 2 beside the exchange, 30 of the wait; once nothing is under way, the last call is taken.
    assert found.exposed == {"fsdp": pytest.approx(37e-6), "ep": pytest.approx(13e-6)}
    assert found.total == pytest.approx(100e-6)


def test_a_step_on_a_gpu() -> None:
    """Kernels count where they were launched, communication where nothing else runs."""

    def kernel(name: str, start: float, stop: float, number: int, **args: Any) -> Any:
        return event(name, start, stop, 7, "kernel", correlation=number, **args)

    def launch(start: float, number: int, tid: int = HOST) -> Any:
        return event("cudaLaunchKernel", start, start + 1, tid, "cuda_runtime", correlation=number)

    trace = [
        event("glmforge.step", 0, 1000),
        event("glmforge.phase:data", 0, 100),
        event("glmforge.phase:attention", 100, 150),
        op("aten::mm", 105, 140, sequence=3),
        launch(110, 1),
        event("glmforge.phase:router and dispatch", 160, 200),
        launch(170, 2),
        op(NODE, 210, 260, AUTOGRAD, sequence=3),
        launch(220, 3, AUTOGRAD),
        kernel("gemm", 200, 300, 1),
        kernel("ncclDevKernel", 250, 400, 2, **{"Process Group Name": "2", "Collective name": "alltoall"}),
        kernel("gemm", 500, 900, 3),
    ]
    found = account(trace, AXES)
    assert seconds(found.phases) == {
        ("data", "forward"): 100,
        ("idle", "forward"): 300,
        ("attention", "forward"): 100,
        ("attention", "backward"): 400,
    }
    assert found.exposed == {"ep": pytest.approx(100e-6)}
    assert found.hidden == {"ep": pytest.approx(50e-6)}
    assert found.total == pytest.approx(1000e-6)


def test_two_steps_are_averaged_and_what_is_between_them_is_left_out() -> None:
    trace = [
        event("glmforge.step", 0, 100),
        event("glmforge.phase:data", 0, 40),
        event("glmforge.phase:data", 110, 140),
        event("glmforge.step", 200, 500),
        event("glmforge.phase:data", 250, 310),
    ]
    found = account([e for e in trace if e["ts"] != 110], AXES)
    assert found.of("data") == pytest.approx(50e-6)
    assert found.total == pytest.approx(200e-6)


def test_marks_are_gone_afterwards() -> None:
    before = Experts.swiglu, torch.autograd.backward
    with marked():
        assert Experts.swiglu is not before[0]
    assert (Experts.swiglu, torch.autograd.backward) == before
