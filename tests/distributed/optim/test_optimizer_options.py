"""LAMB, rules and layer-wise rates on whole training steps: every layout against one process."""

from typing import Any

import pytest
import torch

from helpers.distributed import run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case

# As for Muon (tests/distributed/parallel/test_equivalence.py): fp32 gradients in another order, passed on by a factor
# around 1. LAMB's own norms are exact to fp64.
TOLERANCE = 1e-5

FROZEN = {"match": "model.embed_tokens.weight", "lr_scale": 0.0}
FROZEN_LAYER = {"match": "model.layers.0.*", "lr_scale": 0.0}
FROZEN_EXPERTS = {"match": "*.experts.*", "lr_scale": 0.0}
FROZEN_HEAD = {"match": "lm_head.weight", "lr_scale": 0.0}
OWN_RATES = {"layer_lr_decay": 0.8, "rules": [{"match": "*.mlp.gate.weight", "lr_scale": 2.0, "optimizer": "lamb"}]}

CASES: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}, {"matrix_optimizer": "lamb"}),
    (2, {"tp": 2}, OWN_RATES),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "zbv"}, {"rules": [FROZEN_LAYER, FROZEN_EXPERTS]}),
]
MORE: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}, {"rules": [FROZEN, FROZEN_EXPERTS, FROZEN_HEAD]}),
    (4, {"pp": 2, "dp_shard": 2, "micro_batch_size": 2}, {"matrix_optimizer": "lamb", "layer_lr_decay": 0.8}),
    (2, {"dp_shard": 2, "recompute": "full"}, {"rules": [FROZEN, FROZEN_LAYER, FROZEN_EXPERTS]}),
    (2, {"pp": 2, "micro_batch_size": 2}, {"rules": [FROZEN, FROZEN_EXPERTS, FROZEN_HEAD]}),
]


@pytest.mark.parametrize(
    ("world_size", "parallel", "optim"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in MORE)],
    ids=str,
)
def test_it_equals_one_process(world_size, parallel, optim):
    case = Case(parallel, world_size, optim=optim)
    expected = single_case(case)
    actual = run_ranks(rank_case, world_size, case, timeout_s=300)[0]
    limits = {name: 0.0 if name.startswith("initial.") else TOLERANCE for name in expected}
    wrong = {name: error for name, error in differences(actual, expected).items() if error > limits[name]}
    assert not wrong


def test_what_is_frozen_gets_no_gradient_and_does_not_move():
    result = single_case(Case({}, 1, optim={"rules": [FROZEN_LAYER, FROZEN_EXPERTS]}))
    names = [name.removeprefix("weight.") for name in result if name.startswith("weight.")]
    still = {name for name in names if torch.equal(result[f"weight.{name}"], result[f"initial.{name}"])}
    assert still == {name for name in names if ".layers.0." in name or ".experts." in name}
    assert not any(f"gradient.{name}" in result for name in still)
