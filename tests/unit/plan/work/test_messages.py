"""The collectives that are counted one by one are those that a dry run sees, and their bytes those of the traffic."""

from collections import Counter
from collections.abc import Callable

import pytest

from glmforge.config import RunConfig, load_config
from glmforge.config.layout import resolve_layout
from glmforge.dryrun.run import DryRun
from glmforge.plan.work.messages import step_messages
from glmforge.plan.work.traffic import step_traffic

LEFT_OUT = {"tp": 0.06, "dp_replicate": 0.1}
"""Sums of the head's losses and of norms' and routers' gradients over tp; one of the loss over replicas."""


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (4, ["parallel.tp=2", "parallel.ep=2", "parallel.recompute=full"]),
        (8, ["parallel.pp=2", "parallel.cp=2", "parallel.ep=2"]),
        (4, ["parallel.dp_replicate=2", "parallel.ep=2"]),
    ],
    ids=["tp ep recompute", "pp cp ep", "replicate ep"],
)
def test_calls_on_each_axis(
    dry_run_once: Callable[[RunConfig, int], DryRun], small_run: str, world_size: int, overrides: list[str]
) -> None:
    config = load_config(small_run, overrides)
    layout = resolve_layout(config, world_size)
    for kind in dry_run_once(config, world_size).classes:
        seen = {axis: calls for (axis, what), calls in kind.step.traffic.items() if what == "calls" and axis != "other"}
        calls: Counter[str] = Counter()
        for message in step_messages(config, layout, kind.pp_rank):
            calls[message.axis] += message.times
        assert calls.keys() == seen.keys()
        for axis, number in calls.items():
            assert number <= seen[axis] <= number * (1 + LEFT_OUT.get(axis, 0)), axis


@pytest.mark.parametrize(
    "overrides",
    [
        ["parallel.tp=2", "parallel.ep=4", "parallel.dp_replicate=2"],
        ["parallel.cp=2", "parallel.context_method=ulysses", "parallel.reduce_gradients=last_micro_batch"],
        ["parallel.pp=2", "parallel.reshard_after_forward=true"],
    ],
)
def test_bytes_are_those_of_the_traffic(small_run: str, overrides: list[str]) -> None:
    config = load_config(small_run, overrides)
    layout = resolve_layout(config, 8)
    for pp_rank in range(layout.pp):
        sizes: Counter[str] = Counter()
        for message in step_messages(config, layout, pp_rank):
            sizes[message.axis] += message.times * message.bytes
        traffic = {traffic.axis: traffic.bytes for traffic in step_traffic(config, layout, pp_rank)}
        # The numbers of rows that ep exchanges are no part of the traffic.
        assert sizes == pytest.approx(traffic, rel=1e-3)
