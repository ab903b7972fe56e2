"""Limits and expectations: arithmetic by hand, and that what is said to be counted is what torch runs."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
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
