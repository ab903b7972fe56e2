"""What crosses the links between nodes, by hand: two nodes of eight H200 that TCP joins."""

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.across_nodes import COPY_ON_EACH, SHARDS_OVER_ALL, AcrossNodes, across_nodes, advice
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.stages.stage import stage_of

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 16384, batch_size: 32, mtp_loss_weight: 0}]
parallel: {micro_batch_size: 1, ep: 8, recompute: full}
optim: {lr: 2e-5, min_lr: 2e-6}
"""
LORA = ["init_from=Air", "lora={rank: 16}"]
COPIES = ["parallel.dp_replicate=2"]

MICRO_BATCHES, LAYERS, MOE_LAYERS = 2, 46, 45
WIDTH, VOCABULARY = 4096, 151_552
EXPERTS = MOE_LAYERS * 128 * 3 * WIDTH * 1408
ATTENTION = 2 * WIDTH * 96 * 128 + 2 * WIDTH * 8 * 128 + (96 + 2 * 8) * 128  # q and o, k and v, their biases
ROUTERS = MOE_LAYERS * 128 * WIDTH
DENSE = LAYERS * (ATTENTION + 2 * WIDTH) + 3 * WIDTH * 10_944 + MOE_LAYERS * 3 * WIDTH * 1408 + ROUTERS
ENDS = 2 * VOCABULARY * WIDTH + WIDTH
ADAPTERS = 31_653_888
BF16, FP32 = 2, 4


def ways(*overrides: str, gpus: int = 16, gpu: str = "h200", network: str = "tcp25") -> list[AcrossNodes]:
    config = load_config(RUN, overrides)
    return across_nodes(config, resolve_layout(config, gpus), find_machine(gpu, network), stage_of(config))


def carried(one: AcrossNodes) -> dict[str, float]:
    return {crossing.axis: crossing.bytes for crossing in one.crossings}


@pytest.mark.parametrize(("planned", "gigabits"), [([], 10), (COPIES, 100)], ids=["shards", "copies"])
def test_lora_of_air_on_two_nodes(planned: list[str], gigabits: int) -> None:
    copies, shards = ways(*LORA, *planned, network=f"tcp{gigabits}")
    assert (copies.words, shards.words) == (COPY_ON_EACH, SHARDS_OVER_ALL)
    assert (copies.is_planned, shards.is_planned) == (bool(planned), not planned)
    # Each of 8 ranks sends and receives its eighth of the gradients, in fp32, once a step.
    assert carried(copies) == {"dp_replicate": pytest.approx(FP32 * ADAPTERS)}
    # Layers are gathered for the forward and again for the backward pass, embedding and head once, routers in fp32.
    # Half of each expert lies on the other node; a ring over 16 ranks carries what 15 of them have to the 16th.
    gathered = BF16 * (2 * (DENSE + ROUTERS + ADAPTERS) + ENDS) + FP32 * ADAPTERS
    assert carried(shards) == {
        "efsdp": pytest.approx(MICRO_BATCHES * BF16 * 2 * EXPERTS / 2),
        "fsdp": pytest.approx(MICRO_BATCHES * gathered * 15 / 16),
    }
    for one in (copies, shards):
        assert one.seconds == pytest.approx(one.bytes * 8 / (gigabits * 1e9))
    # What the copies' step computes can hide no more of it than it takes itself.
    assert shards.seconds - copies.step.seconds < shards.step.seconds - copies.step.seconds < shards.seconds
    assert copies.fits
    assert shards.fits
    taken = advice([copies, shards])
    assert taken == (None if planned else "a copy on each node: parallel.dp_replicate=2 parallel.dp_shard=8")


def test_experts_on_both_nodes_send_half_of_their_rows_across() -> None:
    """A row of 4,096 bf16 for each of a token's 8 experts, there and back, forward, computed again and backward."""
    copies, shards = ways(*LORA, "parallel.ep=16")
    assert copies.settings == "parallel.dp_replicate=2 parallel.dp_shard=8 parallel.ep=8"
    rows = 16_384 * 8 * WIDTH * BF16
    assert carried(shards)["ep"] == pytest.approx(8 * rows * 2 * 3 * MOE_LAYERS * MICRO_BATCHES / 2)
    assert "ep" not in carried(copies)
    assert "efsdp" not in carried(shards)  # each expert lies on one rank


def test_training_all_weights_sums_their_gradients_and_exchanges_what_muon_needs() -> None:
    """Copies sum every gradient once a step; shards gather and reduce half of it in every micro-batch.

    For Muon one copy of each matrix goes to owners on 16 ranks and as many come back as there are copies, in bf16; of
    what all send, half goes to the other node, a half of that into each.
    """
    copies, shards = ways("optim.lr=3e-4", "optim.min_lr=3e-5")
    assert (copies.words, shards.words) == (COPY_ON_EACH, SHARDS_OVER_ALL)
    matrices = EXPERTS + DENSE + VOCABULARY * WIDTH  # and the head's
    assert carried(copies) == {
        "dp_replicate": pytest.approx(FP32 * (EXPERTS + DENSE + ENDS)),
        "exchange": pytest.approx(BF16 * matrices * (1 + 2) / 2 / 2, rel=1e-4),  # without biases and norms
    }
    gathers_and_reductions = MICRO_BATCHES * (BF16 * 2 + FP32) * EXPERTS / 2
    assert carried(shards)["efsdp"] == pytest.approx(gathers_and_reductions)
    assert carried(shards)["exchange"] == pytest.approx(BF16 * matrices * (1 + 1) / 2 / 2, rel=1e-4)


def test_an_adapter_for_each_gpu_carries_what_that_gpu_sends() -> None:
    (shared, _), (own, _) = ways(*LORA), ways(*LORA, network="ib400")
    assert own.bytes == pytest.approx(shared.bytes / 8)
    assert own.seconds == pytest.approx(own.bytes / (0.95 * 50e9))  # of 400 Gbit/s, as much as InfiniBand reaches


def test_a_copy_that_does_not_fit_a_node_is_not_advised() -> None:
    found = ways(*LORA, gpu="l40s")
    assert not found[0].fits
    assert advice(found) is None


@pytest.mark.parametrize(
    ("gpus", "overrides", "words"),
    [
        (8, [], []),  # one node
        (12, ["phases.0.batch_size=24", "parallel.ep=4"], [SHARDS_OVER_ALL]),  # no whole nodes
        (16, ["parallel.pp=2"], [None]),  # a stage on each node: only activations cross
        (32, ["parallel.dp_replicate=2"], [COPY_ON_EACH, None, SHARDS_OVER_ALL]),  # a copy on two nodes
    ],
)
def test_which_ways_there_are(gpus: int, overrides: list[str], words: list[str | None]) -> None:
    found = ways(*LORA, *overrides, gpus=gpus)
    assert [one.words for one in found] == words
    assert [one.is_planned for one in found].count(True) == bool(found)
    if words == [None]:
        assert carried(found[0]).keys() == {"pp"}
