"""The bytes that ranks exchange are those that a dry run sees."""

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.dryrun.run import dry_run
from glmforge.plan.hardware import find_accelerator
from glmforge.plan.traffic import NETWORK_BYTES, Traffic, step_traffic

RUN = """
name: run
model: {preset: tiny, num_hidden_layers: 3}
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 256, batch_size: 8, aux_loss_weight: 0}]
parallel: {micro_batch_size: 1}
"""

# What is left out: counts of rows (ep); the head's sums over the vocabulary and the gradients of norms and routers (tp,
# 7 % in a model this narrow).
LEFT_OUT = {"ep": 0.002, "tp": 0.08}


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (4, ["parallel.cp=2", "parallel.ep=2"]),
        (4, ["parallel.tp=2", "parallel.ep=2", "parallel.recompute=full"]),
        (8, ["parallel.pp=2", "parallel.tp=2", "parallel.ep=2"]),
    ],
    ids=["cp ep", "tp ep recompute", "pp tp ep"],
)
def test_bytes_on_each_axis(world_size: int, overrides: list[str]) -> None:
    config = load_config(RUN, overrides)
    layout = resolve_layout(config, world_size)
    for kind in dry_run(config, world_size).classes:
        seen = {axis: size for (axis, what), size in kind.step.traffic.items() if what == "bytes" and axis != "other"}
        counted = {traffic.axis: traffic.bytes for traffic in step_traffic(config, layout, kind.pp_rank)}
        assert counted.keys() == seen.keys()
        for axis, size in counted.items():
            assert size <= seen[axis] <= size * (1 + LEFT_OUT.get(axis, 0)), axis


def test_a_group_inside_a_node_has_nvlink() -> None:
    config = load_config(RUN, ["parallel.tp=2", "parallel.ep=2", "phases.0.batch_size=32", "parallel.recompute=full"])
    found = {traffic.axis: traffic for traffic in step_traffic(config, resolve_layout(config, 64))}
    assert {axis: traffic.in_node for axis, traffic in found.items()} == {
        "tp": True,
        "ep": True,
        "fsdp": False,
        "efsdp": False,
    }


def test_seconds_by_hand() -> None:
    """90 GB among 8 ranks: each sends 7/8 of it, at 450 GB/s within a node (NVLink's 900 both ways), else at 50."""
    h100 = find_accelerator("NVIDIA H100 80GB HBM3")
    pcie = find_accelerator("NVIDIA H100 PCIe")
    assert h100 is not None
    assert pcie is not None
    assert Traffic("ep", 8, 90 * 10**9, in_node=True).seconds(h100) == pytest.approx(0.175)
    assert Traffic("ep", 8, 90 * 10**9, in_node=False).seconds(h100) == pytest.approx(78.75e9 / NETWORK_BYTES)
    assert Traffic("ep", 8, 90 * 10**9, in_node=True).seconds(pcie) is None
