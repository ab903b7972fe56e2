"""The bytes that ranks exchange are those that a dry run sees."""

from collections.abc import Callable

import pytest

from glmforge.config import RunConfig, load_config
from glmforge.config.layout import resolve_layout
from glmforge.dryrun.run import DryRun
from glmforge.plan.machine.hardware import find_accelerator
from glmforge.plan.stages.stage import stage_of
from glmforge.plan.work.traffic import Traffic, step_traffic

LORA = ["init_from=base", "lora={rank: 8, targets: [self_attn, experts]}"]
# What is left out: counts of rows (ep); the head's sums over the vocabulary and the gradients of norms and routers (tp,
# 7 % in a model this narrow); three sums for gradient norms, of 8 bytes each (dp_replicate).
LEFT_OUT = {"ep": 0.002, "tp": 0.08}
LEFT_OUT_BYTES = {"dp_replicate": 24}


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (4, ["parallel.tp=2", "parallel.ep=2", "parallel.recompute=full"]),
        (8, ["parallel.pp=2", "parallel.cp=2", "parallel.ep=2"]),
        (2, ["optim.rules=[{match: '*experts*', lr_scale: 0}, {match: lm_head.weight, lr_scale: 0}]"]),
        (4, [*LORA, "parallel.dp_replicate=2", "parallel.ep=2", "parallel.recompute=full"]),
        (4, [*LORA, "parallel.ep=2"]),
    ],
    ids=["tp ep recompute", "pp cp ep", "frozen", "adapters of copies", "adapters"],
)
def test_bytes_on_each_axis(
    dry_run_once: Callable[[RunConfig, int], DryRun], small_run: str, world_size: int, overrides: list[str]
) -> None:
    config = load_config(small_run, overrides)
    layout = resolve_layout(config, world_size)
    for kind in dry_run_once(config, world_size).classes:
        seen = {axis: size for (axis, what), size in kind.step.traffic.items() if what == "bytes" and axis != "other"}
        counted = {
            traffic.axis: traffic.bytes for traffic in step_traffic(config, layout, kind.pp_rank, stage_of(config))
        }
        assert counted.keys() == seen.keys()
        for axis, size in counted.items():
            assert size <= seen[axis] <= size * (1 + LEFT_OUT.get(axis, 0)) + LEFT_OUT_BYTES.get(axis, 0), axis


def test_who_shares_a_node(small_run: str) -> None:
    config = load_config(small_run, ["parallel.tp=2", "parallel.ep=4", "phases.0.batch_size=32"])
    found = step_traffic(config, resolve_layout(config, 64))
    ranks = {traffic.axis: (traffic.num_ranks, traffic.ranks_per_node) for traffic in found}
    assert ranks == {"tp": (2, 2), "ep": (4, 4), "fsdp": (32, 4), "efsdp": (16, 2)}


@pytest.mark.parametrize(
    ("traffic", "seconds"),
    [
        (Traffic("ep", 8, 8, 90 * 10**9, True), 7 / 8 * 90 / 450),  # NVLink of an H100 has 900 GB/s, 450 each way
        (Traffic("ep", 16, 8, 90 * 10**9, True), 8 / 16 * 90 / 50),  # half of it leaves the node
        (Traffic("fsdp", 64, 8, 90 * 10**9, False), 63 / 64 * 90 / 8 / 50),  # once into each node, over 8 adapters
        (Traffic("dp_replicate", 2, 1, 90 * 10**9, False), 2 * 1 / 2 * 90 / 50),
        (Traffic("pp", 4, 1, 90 * 10**9, False), 90 / 2 / 50),
    ],
)
def test_seconds_by_hand(traffic: Traffic, seconds: float) -> None:
    h100 = find_accelerator("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    assert traffic.seconds(h100) == pytest.approx(seconds)


def test_no_seconds_without_a_known_link() -> None:
    pcie = find_accelerator("NVIDIA H100 PCIe")
    assert pcie is not None
    assert Traffic("ep", 8, 8, 90 * 10**9, True).seconds(pcie) is None
