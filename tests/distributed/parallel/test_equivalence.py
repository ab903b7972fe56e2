"""Parallelism changes nothing: every layout against one process, over three whole steps in fp32.

Compared are the initial weights, every gradient (every expert's) of the first step, and for each of three steps with
Muon and AdamW, clipping and router balance: losses, gradient norm, tokens per expert; then all weights, router biases
and optimizer states. Batches hold packed documents of uneven length; MTP and the auxiliary loss are on.

The tolerance is on the norm of the difference of each tensor over the tensor's. Sums over ranks and tokens in another
order differ by about sqrt(n) * 2^-24, some 1e-6, in a gradient; three steps of Newton-Schulz and Adam pass that on to
the weights with factors around 1. The largest errors seen are 3e-6. Integers and initial weights must be equal.

`make test` runs the axes one by one and some combinations; `make test-distributed` runs the whole matrix.
"""

from typing import Any

import pytest

from helpers.distributed import run_ranks
from helpers.equivalence import Case, differences, rank_case, single_case

TOLERANCE = 1e-5

ALONE: list[tuple[int, dict[str, Any]]] = [
    (2, {"dp_shard": 2}),
    (2, {"dp_replicate": 2}),
    (2, {"tp": 2}),
    (2, {"ep": 2, "recompute": "full"}),
    (2, {"cp": 2}),
    (2, {"cp": 2, "context_method": "ulysses"}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "1f1b"}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "zbv"}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "dualpipev"}),
]

COMBINED: list[tuple[int, dict[str, Any]]] = [
    (4, {"dp_shard": 2, "tp": 2, "ep": 2}),
    (4, {"cp": 2, "dp_shard": 2, "ep": 2, "recompute": "selective", "micro_batch_size": 2}),
    (8, {"pp": 2, "tp": 2, "cp": 2, "ep": 4, "micro_batch_size": 2}),
]

MATRIX: list[tuple[int, dict[str, Any]]] = [
    (4, {"dp_replicate": 2, "dp_shard": 2, "micro_batch_size": 1}),
    (2, {"tp": 2, "sequence_parallel": False, "micro_batch_size": 1}),
    (4, {"pp": 2, "dp_shard": 2, "ep": 2, "micro_batch_size": 1}),
    (4, {"dp_shard": 4}),
    (4, {"dp_shard": 4, "micro_batch_size": 1, "reduce_gradients": "last_micro_batch"}),
    (4, {"dp_shard": 4, "reshard_after_forward": False, "prefetch_layers": 0}),
    (4, {"dp_shard": 4, "cpu_offload": True}),
    (4, {"dp_replicate": 2, "dp_shard": 2, "recompute": "full"}),
    (2, {"tp": 2, "recompute": "selective", "micro_batch_size": 4}),
    (4, {"tp": 2, "dp_replicate": 2}),
    (4, {"tp": 2, "dp_shard": 2, "sequence_parallel": False, "recompute": "full"}),
    (4, {"ep": 4, "micro_batch_size": 1}),
    (4, {"ep": 2, "dp_shard": 4, "reduce_gradients": "last_micro_batch", "micro_batch_size": 1}),
    (4, {"ep": 2, "dp_replicate": 2}),
    (2, {"ep": 2, "tp": 2}),
    (2, {"ep": 2, "tp": 2, "sequence_parallel": False}),
    (4, {"ep": 4, "tp": 2}),
    (4, {"cp": 4}),
    (4, {"cp": 2, "ep": 4, "dp_shard": 2}),
    (4, {"cp": 2, "dp_replicate": 2, "recompute": "full"}),
    (4, {"cp": 2, "tp": 2, "sequence_parallel": False}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "gpipe", "recompute": "full"}),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "looped_bfs"}),
    (2, {"pp": 2, "micro_batch_size": 1, "pipeline_schedule": "interleaved_zero_bubble", "recompute": "selective"}),
    (2, {"pp": 2, "micro_batch_size": 1, "pipeline_layers": [1, 3]}),
    (2, {"pp": 2, "micro_batch_size": 1, "pipeline_layers": [4, 0]}),
    (4, {"pp": 4, "micro_batch_size": 1}),
    (4, {"pp": 2, "dp_shard": 2, "micro_batch_size": 1, "pipeline_schedule": "zbv"}),
    (4, {"pp": 2, "dp_shard": 2, "micro_batch_size": 1, "pipeline_schedule": "dualpipev"}),
    (4, {"pp": 2, "dp_replicate": 2, "micro_batch_size": 1, "pipeline_schedule": "interleaved_zero_bubble"}),
    (4, {"pp": 2, "dp_shard": 2, "micro_batch_size": 1, "reshard_after_forward": True}),
    (4, {"pp": 2, "tp": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"}),
    (4, {"pp": 2, "cp": 2, "micro_batch_size": 2}),
    (8, {"dp_shard": 4, "tp": 2, "ep": 4, "micro_batch_size": 1, "recompute": "full"}),
    (8, {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "ep": 2}),
    (8, {"dp_shard": 2, "cp": 2, "tp": 2, "ep": 8}),
    (8, {"pp": 2, "dp_shard": 4, "ep": 2, "micro_batch_size": 1}),
    (8, {"pp": 2, "dp_shard": 2, "tp": 2, "ep": 4, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"}),
    (
        8,
        {
            "pp": 2,
            "cp": 2,
            "tp": 2,
            "ep": 2,
            "micro_batch_size": 1,
            "sequence_parallel": False,
            "pipeline_schedule": "zbv",
            "recompute": "selective",
        },
    ),
]

COMPILED: list[tuple[int, dict[str, Any]]] = [
    (2, {"tp": 2, "ep": 2, "compile": True}),
    (2, {"dp_shard": 2, "compile": True, "recompute": "budget"}),
    (2, {"dp_shard": 2, "compile": True, "recompute": "full"}),
]

OTHER_RUNS: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (4, {"dp_shard": 2, "ep": 2, "tp": 2}, {"phase": {"mtp_loss_weight": 0.0, "aux_loss_weight": 0.0}}),
    (2, {"pp": 2, "micro_batch_size": 2}, {"phase": {"mtp_loss_weight": 0.0}}),
    (2, {"pp": 2, "micro_batch_size": 2}, {"model": {"num_nextn_predict_layers": 2}}),
    (4, {"cp": 2, "tp": 2, "ep": 4}, {"model": {"num_nextn_predict_layers": 2, "use_qk_norm": False}}),
    (2, {"ep": 2}, {"model": {"n_group": 4, "topk_group": 2, "n_shared_experts": 2}}),
    (4, {"dp_shard": 4}, {"model": {"n_routed_experts": 5, "vocab_size": 509}}),
    (4, {"tp": 2, "dp_shard": 2, "ep": 2}, {"optim": {"matrix_optimizer": "adamw"}}),
    (2, {"tp": 2}, {"optim": {"lm_head": "adamw", "newton_schulz": "polar_express"}}),
]


DROPOUT = {"regularization": {"dropout": 0.1, "attention_dropout": 0.1}}
OF_RESIDUALS = {"regularization": {"dropout": 0.1}}  # attention dropout needs whole rows
SINKHORN = {"phase": {"balance": "sinkhorn"}}

REGULARISED: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"tp": 2}, DROPOUT | SINKHORN),
    (2, {"cp": 2, "recompute": "full"}, OF_RESIDUALS | SINKHORN),
]

Z_LOSS = {"phase": {"z_loss_weight": 0.01}}
WITH_Z_LOSS: list[tuple[int, dict[str, Any], dict[str, Any]]] = [(4, {"cp": 2, "tp": 2}, Z_LOSS)]

SFT = {"stage": {"stage": "sft", "init_from": "nowhere"}, "regularization": {"neftune_alpha": 5.0}}
FINE_TUNED: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"cp": 2, "micro_batch_size": 2}, SFT),
    (2, {"tp": 2, "micro_batch_size": 2}, SFT),
]
FINE_TUNED_MATRIX: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"dp_shard": 2, "ep": 2}, SFT),
    (2, {"tp": 2, "sequence_parallel": False, "micro_batch_size": 1}, SFT),
    (2, {"pp": 2, "micro_batch_size": 2}, SFT),
    (4, {"cp": 2, "tp": 2, "ep": 4}, SFT | Z_LOSS),
    (4, {"pp": 2, "dp_shard": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_zero_bubble"}, SFT),
    (2, {"dp_shard": 2, "compile": True, "recompute": "full"}, SFT),
]

TRITON = dict.fromkeys(("rms_norm", "qk_rope", "cross_entropy", "symmetric_matmul"), "triton")
BY_TRITON: list[tuple[int, dict[str, Any], dict[str, Any]]] = [(2, {"tp": 2}, {"kernels": TRITON} | Z_LOSS)]

TIED = {"model": {"tie_word_embeddings": True}}
TIED_EMBEDDINGS: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"tp": 2}, TIED),
]

TIED_MATRIX: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"dp_shard": 2, "micro_batch_size": 2}, TIED),
    (4, {"dp_shard": 2, "tp": 2, "ep": 2, "recompute": "full"}, TIED),
    (2, {"tp": 2, "sequence_parallel": False, "micro_batch_size": 1}, TIED),
    (4, {"cp": 2, "dp_replicate": 2, "reduce_gradients": "last_micro_batch", "micro_batch_size": 1}, TIED),
    (2, {"dp_shard": 2, "cpu_offload": True}, TIED),
    (2, {"dp_shard": 2, "compile": True}, TIED),
    (4, {"dp_shard": 4}, {"model": {"tie_word_embeddings": True, "vocab_size": 509}}),
]

REGULARISED_MATRIX: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
    (2, {"dp_shard": 2, "ep": 2, "micro_batch_size": 2}, DROPOUT | SINKHORN),
    (2, {"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "interleaved_1f1b"}, DROPOUT | SINKHORN),
    # tp ranks share single rows
    (2, {"tp": 2, "sequence_parallel": False, "micro_batch_size": 1}, DROPOUT | SINKHORN),
    (4, {"dp_replicate": 2, "tp": 2, "recompute": "selective"}, DROPOUT | SINKHORN),
    (4, {"cp": 2, "tp": 2, "ep": 4}, OF_RESIDUALS | SINKHORN),
    (4, {"cp": 2, "tp": 2, "sequence_parallel": False}, OF_RESIDUALS | SINKHORN),
    (4, {"pp": 2, "tp": 2, "micro_batch_size": 2, "recompute": "full"}, DROPOUT | SINKHORN),
    (2, {"tp": 2, "compile": True}, DROPOUT | SINKHORN),
    (2, {"dp_shard": 2, "compile": True, "recompute": "full"}, DROPOUT | SINKHORN),
]


def check(case: Case) -> None:
    expected = single_case(case)
    actual = run_ranks(rank_case, case.world_size, case, timeout_s=300)[0]
    wrong = {}
    for name, error in differences(actual, expected).items():
        if error > (0 if name.startswith("initial.") else TOLERANCE):
            wrong[name] = error
    assert not wrong, f"{len(wrong)} differ: {dict(sorted(wrong.items(), key=lambda item: -item[1])[:8])}"


def named(cases: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(Case(parallel, size, **dict(*rest)), id=Case(parallel, size, **dict(*rest)).name)
            for size, parallel, *rest in cases]  # fmt: skip


@pytest.mark.parametrize("case", named([*ALONE, *COMBINED, *REGULARISED, *TIED_EMBEDDINGS, *WITH_Z_LOSS, *FINE_TUNED]))
def test_three_steps_equal_one_process(case: Case) -> None:
    check(case)


@pytest.mark.full
@pytest.mark.parametrize(
    "case", named([*MATRIX, *COMPILED, *OTHER_RUNS, *REGULARISED_MATRIX, *TIED_MATRIX, *FINE_TUNED_MATRIX, *BY_TRITON])
)
def test_three_steps_equal_one_process_on_every_layout(case: Case) -> None:
    check(case)
