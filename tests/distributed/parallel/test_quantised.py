"""Adapters beside 4-bit weights on every layout against one process: the same codes to the bit, the same training."""

from functools import cache
from typing import Any

import pytest
from torch import Tensor

from helpers.distributed import run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case

pytest.importorskip("torchao")

TOLERANCE = 1e-5  # that of test_equivalence.py, for the reasons given there
WIDTHS = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 128, "head_dim": 32}
"""Blocks of 64 inputs, also of half of what tp cuts."""


def case(parallel: dict[str, Any], world_size: int) -> Case:
    lora = {"rank": 4, "targets": ["all-linear", "gate", "lm_head"]}
    return Case(parallel, world_size, model=WIDTHS, lora=lora, frozen="nf4")


@cache
def single() -> dict[str, Tensor]:
    return single_case(case({}, 1))


@pytest.mark.parametrize(
    ("world_size", "parallel"),
    [
        (2, {"dp_shard": 2}),
        pytest.param(2, {"ep": 2, "recompute": "full"}, marks=pytest.mark.full),
        pytest.param(2, {"dp_replicate": 2, "micro_batch_size": 1}, marks=pytest.mark.full),
        (2, {"tp": 2, "ep": 2}),
        pytest.param(2, {"tp": 2, "ep": 2, "compile": True}, marks=pytest.mark.full),  # inductor: most of a minute
        pytest.param(4, {"dp_shard": 2, "tp": 2, "ep": 2, "recompute": "selective"}, marks=pytest.mark.full),
        pytest.param(2, {"pp": 2, "micro_batch_size": 2}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_layouts_hold_the_same_codes_and_train_the_same(world_size: int, parallel: dict[str, Any]) -> None:
    expected = single()
    actual = run_ranks(rank_case, world_size, case(parallel, world_size), timeout_s=300)[0]
    errors = differences(actual, expected)
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}
    scales = [name for name in errors if name.endswith("_scale")]
    assert len(scales) == 2 * (4 + 3 + 3 * (4 + 2 + 3))  # before and after training; one dense layer and three of MoE
    assert not any(errors[name] or errors[name.removesuffix("_scale")] for name in scales)


def test_codes_are_not_trained() -> None:
    results = single()
    assert not any("_scale" in name for name in results if name.startswith(("gradient.", "optimizer.")))
    held = [name.removeprefix("weight.") for name in results if name.endswith("_scale") and name.startswith("weight.")]
    for name in (*held, *(name.removesuffix("_scale") for name in held)):
        assert results[f"weight.{name}"].equal(results[f"initial.{name}"])
        assert results[f"weight.{name}"].any()
