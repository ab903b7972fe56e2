"""Limits and expectations: arithmetic by hand, and that what is said to be counted is what torch runs."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.kernels.dispatch import combine, permute, sort_by_expert
from glmforge.kernels.qk_rope import rotate
from glmforge.model.layers import RMSNorm
from glmforge.model.rope import Rope
from glmforge.plan.machine.hardware import Accelerator, find_accelerator
from glmforge.plan.time.ledger import make_ledger
from glmforge.plan.time.matmul import matmul_seconds
from glmforge.plan.time.reached import FACTORS, IMPLEMENTATIONS, LEVERS
from glmforge.plan.time.roofline import work_limit
from glmforge.plan.work.operations import Matmul, Work

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 4096, batch_size: 4}]
parallel: {micro_batch_size: 2}
"""


@pytest.fixture
def h200() -> Accelerator:
    found = find_accelerator("NVIDIA H200")
    assert found is not None
    return found


def test_limits_by_hand(h200: Accelerator) -> None:
    """A product of 8,192 x 4,096 x 4,096 takes 274.9e9 / 989.4e12 = 277.8 us, its three matrices of 67.1, 33.6 and 67.1
    MB only 167.8e6 / 4.8e12 = 35 us. In fp32 it is 274.9e9 / 66.9e12 = 4.108 ms. A copy of 1 GB takes 2e9 / 4.8e12."""
    product = Matmul(8192, 4096, 4096)
    assert product.bytes == 167_772_160
    assert work_limit(Work(product.bytes, (product,)), h200) == pytest.approx(277.8e-6, rel=1e-3)
    in_fp32 = Matmul(8192, 4096, 4096, itemsize=4)
    assert work_limit(Work(in_fp32.bytes, (in_fp32,)), h200) == pytest.approx(4.108e-3, rel=1e-3)
    assert work_limit(Work(2 * 10**9), h200) == pytest.approx(416.7e-6, rel=1e-3)


def test_the_measured_product_is_expected_as_measured(h200: Accelerator) -> None:
    square = Matmul(8192, 8192, 8192)
    assert square.flops / matmul_seconds(square, h200) == pytest.approx(788e12)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Matmul(8192, 4096, 4096), Matmul(8192, 4096, 256)),  # tiles that end as soon as they have begun
        (Matmul(8192, 4096, 4096), Matmul(129, 4096, 4096)),  # half of the second row of tiles is empty
        (Matmul(65536, 2816, 4096, 16), Matmul(65536, 2816, 4096, 512)),  # 128 rows for each expert's matrix
        (Matmul(4096, 2816, 65536, 16, contracts_rows=True), Matmul(4096, 2816, 65536, 512, contracts_rows=True)),
    ],
)
def test_shapes_that_suit_a_gpu_less_run_at_a_lower_rate(better: Matmul, worse: Matmul, h200: Accelerator) -> None:
    rates = [matmul.flops / matmul_seconds(matmul, h200) for matmul in (better, worse)]
    assert rates[1] < 0.9 * rates[0]


def test_nothing_is_expected_to_beat_its_limit(h200: Accelerator) -> None:
    config = load_config(RUN, ["parallel.recompute=full"])
    for row in make_ledger(config, resolve_layout(config, 1), h200).rows:
        for cost in (row.forward, row.backward):
            times = [cost.expected[name] for name in IMPLEMENTATIONS]
            assert times == sorted(times, reverse=True)
            assert cost.limit <= times[-1]
        assert 0 <= row.gain < row.total.expected["triton"]


def test_what_is_done_again_takes_its_time_and_not_the_limits(h200: Accelerator) -> None:
    """Weights are cast for each of two micro-batches, where once would do."""
    config = load_config(RUN)
    casts = next(row for row in make_ledger(config, resolve_layout(config, 1), h200).rows if row.name == "weight casts")
    cost = casts.forward
    assert cost.limit == pytest.approx(cost.bytes / 4.8e12)
    assert cost.expected["triton"] == pytest.approx(2 * cost.bytes / (0.92 * 4.3e12))


def test_every_factor_and_lever_is_of_an_operation() -> None:
    names = set()
    for overrides in ([], ["model.use_qk_norm=true"]):
        config = load_config(RUN, overrides)
        names |= {row.name for row in make_ledger(config, resolve_layout(config, 1), None).rows}
    assert {name for name in FACTORS if name not in names} == {"SwiGLU"}  # of any MLP but the experts'
    assert LEVERS.keys() <= names


class MovedBytes(TorchDispatchMode):
    """Sums the bytes that operators read and write; views move none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read, written = (
            [x.numel() * x.element_size() for x in tree_leaves(tree) if isinstance(x, Tensor)]
            for tree in ((args, kwargs or {}), result)
        )
        name = func.name()
        if func.is_view or "unsafe_view" in name or "empty" in name or "detach" in name:
            return result
        if "index_select" in name:  # reads the rows that it takes
            read = [sum(written)]
        elif "index_copy" in name:  # reads and writes as many rows as it is given
            read, written = [], [2 * args[3].numel() * args[3].element_size()]
        elif "copy_" in name and "_to_copy" not in name:  # does not read what it overwrites
            read = []
            written = [2 * size for size in written]
        self.bytes += sum(read) + sum(written)
        return result


def _bf16(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16).requires_grad_()


T, D, K, E = 256, 512, 8, 4


def _norm() -> tuple[Callable[..., Any], list[Tensor], tuple[int, int]]:
    norm = RMSNorm(D, 1e-5)
    torch.nn.init.ones_(norm.weight)

    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, norm(x + y)

    return forward, [_bf16(T, D), _bf16(T, D)], (8 * T * D, 8 * T * D)


def _rope() -> tuple[Callable[..., Any], list[Tensor], tuple[int, int]]:
    rope = Rope.at(torch.arange(T), 64, 1e4, torch.bfloat16)
    return partial(_rotate, rope), [_bf16(T, 4, 128)], (4 * T * 512, 4 * T * 512)


def _rotate(rope: Rope, x_THP: Tensor) -> Tensor:
    return rotate(x_THP, rope.cos_T1R, rope.sin_T1R)


def _silu() -> tuple[Callable[..., Any], list[Tensor], tuple[int, int]]:
    return lambda gate, up: F.silu(gate) * up, [_bf16(T, D), _bf16(T, D)], (6 * T * D, 10 * T * D)


def _combine() -> tuple[Callable[..., Any], list[Tensor], tuple[int, int]]:
    routing = sort_by_expert(torch.randint(0, E, (T, K)), E)
    rows = K * T
    return (
        lambda y, weights, shared: combine(y, weights, routing) + shared,
        [_bf16(rows, D), torch.rand(T, K).requires_grad_(), _bf16(T, D)],
        (12 * rows + 2 * rows * D + 4 * T * D, 24 * rows + 2 * T * D + 4 * rows * D),
    )


def _permute() -> tuple[Callable[..., Any], list[Tensor], tuple[int, int]]:
    routing = sort_by_expert(torch.randint(0, E, (T, K)), E)
    rows = K * T
    return lambda x: permute(x, routing), [_bf16(T, D)], (2 * (rows + T) * D, 2 * (rows + T) * D)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("residual and norm", _norm),
        ("RoPE", _rope),
        ("SwiGLU", _silu),
        ("combine", _combine),
        ("sort and permute", _permute),
    ],
)
def test_counted_factors_are_those_of_torch_s_operators(name: str, make: Callable[[], Any]) -> None:
    """Within a sixth: sizes are small here, and what is small beside the rows (indices, sorting) is not told apart."""
    forward, inputs, (least_forward, least_backward) = make()
    with MovedBytes() as there:
        outputs = forward(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    gradients = [torch.ones_like(output) for output in outputs]
    with MovedBytes() as back:
        torch.autograd.backward(outputs, gradients)
    factor = FACTORS[name]["eager"]
    assert there.bytes / least_forward == pytest.approx(factor.forward, rel=1 / 6)
    assert back.bytes / least_backward == pytest.approx(factor.backward, rel=1 / 6)


def plan(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_command() -> None:
    found = json.loads(plan("demo", "precision.compute=bf16", "--roofline", "NVIDIA H200", "--json").stdout)
    attention = next(row for row in found["operations"] if row["name"] == "attention")
    assert attention["forward"]["limit_s"] < attention["forward"]["expected_s"]["eager"]
    assert set(found["mfu"]) == set(IMPLEMENTATIONS)
    shown = plan("demo", "precision.compute=bf16", "--roofline", "H200 SXM").output
    assert "attention" in shown
    assert "Expected, not measured" in shown


def test_an_unknown_gpu_has_no_times() -> None:
    result = plan("demo", "precision.compute=bf16", "--roofline", "NVIDIA Q100", "--json")
    found = json.loads(result.stdout)
    assert found["gpu"] is None
    assert [key for key in ("limit_s", "expected_s", "gain_s", "mfu") if key in result.stdout] == []
    assert "no times can be computed; known are A100" in result.stderr


def test_no_torch() -> None:
    program = "import sys, glmforge.plan.time.ledger; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
