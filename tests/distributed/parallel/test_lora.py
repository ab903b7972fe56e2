"""Adapters on every layout against one process, as `test_equivalence` compares whole training, to its tolerance.

Every kind of map is adapted: those that tp cuts by outputs and by inputs, the packed routed experts, both ways, the
router, embedding and head. Factors begin with values that matter, so that each gradient does. All weights but the
adapters' are frozen, and must not have changed.
"""

from functools import cache
from typing import Any

import pytest
from torch import Tensor

from helpers.distributed import run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case

TOLERANCE = 1e-5  # that of test_equivalence.py, for the reasons given there

EVERYWHERE = {"rank": 4, "targets": ["all-linear", "gate", "embed_tokens", "lm_head"], "lr_ratio": 4.0}
PACKED = {"rank": 4, "targets": ["experts.gate_up_proj", "experts.down_proj"], "rslora": True}
SAVED = {"rank": 4, "targets": ["self_attn"], "modules_to_save": ["gate", "norm", "lm_head"]}
DORA = {"rank": 4, "targets": ["self_attn", "shared_experts", "model.layers.0.mlp.*"], "dora": True}
DROPPED = DORA | {"dora": False, "dropout": 0.3}
SETTINGS: dict[str, dict[str, Any]] = {
    "everywhere": EVERYWHERE,
    "packed": PACKED,
    "saved": SAVED,
    "dora": DORA,
    "dropped": DROPPED,
}

ALONE: list[tuple[int, dict[str, Any], str]] = [
    (2, {"dp_shard": 2}, "everywhere"),
    (2, {"dp_replicate": 2, "micro_batch_size": 1}, "everywhere"),
    (2, {"tp": 2}, "everywhere"),
    (2, {"tp": 2, "sequence_parallel": False}, "everywhere"),
    (2, {"tp": 2}, "dora"),
    (2, {"ep": 2, "recompute": "full"}, "everywhere"),
    (2, {"ep": 2}, "packed"),
    (2, {"cp": 2}, "everywhere"),
    (2, {"pp": 2, "micro_batch_size": 2}, "everywhere"),
]
QUICK = [ALONE[0], ALONE[2], ALONE[4], ALONE[5]]
DROPOUT: list[tuple[int, dict[str, Any], str]] = [
    (2, {"tp": 2}, "dropped"),
    (4, {"dp_shard": 2, "cp": 2, "micro_batch_size": 2, "recompute": "full"}, "dropped"),
    (4, {"tp": 2, "pp": 2, "sequence_parallel": False, "micro_batch_size": 2}, "dropped"),
    (2, {"tp": 2, "ep": 2, "compile": True}, "dropped"),
]
COMBINED: list[tuple[int, dict[str, Any], str]] = [
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}, "everywhere"),
    (4, {"dp_shard": 2, "tp": 2, "ep": 2, "recompute": "selective"}, "dora"),
    (4, {"dp_replicate": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 1}, "packed"),
    (4, {"dp_shard": 2, "tp": 2}, "saved"),
    (4, {"pp": 2, "cp": 2, "ep": 2, "micro_batch_size": 2}, "everywhere"),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "zbv"}, "everywhere"),
    (2, {"tp": 2, "ep": 2, "compile": True}, "everywhere"),
    (2, {"dp_shard": 2, "compile": True}, "dora"),
]


def case(parallel: dict[str, Any], world_size: int, name: str) -> Case:
    return Case(parallel, world_size, lora=SETTINGS[name])


@cache
def single(name: str) -> dict[str, Tensor]:
    return single_case(case({}, 1, name))


@pytest.mark.parametrize(
    ("world_size", "parallel", "name"),
    [
        *(pytest.param(*layout) for layout in QUICK),
        *(
            pytest.param(*layout, marks=pytest.mark.full)
            for layout in (*ALONE, *DROPOUT[1:], *COMBINED[1:])
            if layout not in QUICK
        ),
        pytest.param(*DROPOUT[0]),
        pytest.param(*COMBINED[0]),
    ],
    ids=str,
)
def test_adapters_are_trained_as_on_one_process(world_size: int, parallel: dict[str, Any], name: str) -> None:
    expected = single(name)
    actual = run_ranks(rank_case, world_size, case(parallel, world_size, name), timeout_s=300)[0]
    errors = differences(actual, expected)
    assert {name: error for name, error in errors.items() if error > TOLERANCE} == {}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_trained_changes_and_nothing_else(name: str) -> None:
    results = single(name)
    gradients = {key.removeprefix("gradient.") for key in results if key.startswith("gradient.")}
    saved = {"saved": ("mlp.gate.weight", "norm.weight", "lm_head.weight")}.get(name, ())
    # MTP layers see no adapter, and their routers' gates are only trained where they are saved.
    weights = {key.removeprefix("weight.") for key in results if key.startswith("weight.")}
    assert gradients == {key for key in weights if ".lora_" in key or (saved and _is_saved(key))}
    assert all((results[f"gradient.{key}"] != 0).any() for key in gradients)
    for key in weights - gradients:
        assert (results[f"weight.{key}"] == results[f"initial.{key}"]).all(), key


def _is_saved(name: str) -> bool:
    parts = name.split(".")
    return name.endswith(".weight") and bool({"gate", "norm", "lm_head"} & set(parts))
