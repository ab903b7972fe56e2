"""Changes that are proposed where memory is short: they work, save what they say, and the best comes first."""

from typing import Any

import pytest

from glmforge.config.layout import resolve_layout
from glmforge.plan.memory.changes import helpful_changes
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.stages.stage import stage_of
from helpers.models import run_config

PHASE = {"name": "main", "steps": 4, "seq_len": 256, "batch_size": 64}


@pytest.mark.parametrize(
    ("parallel", "world_size"),
    [
        ({}, 1),
        ({"micro_batch_size": 4, "recompute": "selective"}, 8),
        ({"pp": 2, "micro_batch_size": 2, "pipeline_schedule": "gpipe"}, 4),
        ({"dp_replicate": 2, "reduce_gradients": "last_micro_batch", "micro_batch_size": 4}, 4),
    ],
)
def test_what_is_proposed_works_and_saves_memory(parallel: dict[str, Any], world_size: int) -> None:
    config = run_config(phases=[PHASE], parallel=parallel)
    before = estimate_memory(config, resolve_layout(config, world_size)).peak
    changes = helpful_changes(config, world_size, number=10)
    assert changes
    assert len({change.key for change in changes}) == len(changes)
    assert [change.peak for change in changes] == sorted(change.peak for change in changes)
    for change in changes:
        changed = run_config(phases=[PHASE], parallel=parallel | {change.key: change.value})
        assert estimate_memory(changed, resolve_layout(changed, world_size)).peak == change.peak < before


def test_what_is_proposed_for_adapters_saves_what_it_says() -> None:
    """Of the adapters' step: training the whole model would need several times as much."""
    more = {"phases": [PHASE], "lora": {"rank": 2}, "init_from": "base"}
    config = run_config(**more)
    before = estimate_memory(config, resolve_layout(config, 1), stage_of(config)).peak
    changes = helpful_changes(config, 1)
    assert changes
    for change in changes:
        changed = run_config(**more, parallel={change.key: change.value})
        planned = estimate_memory(changed, resolve_layout(changed, 1), stage_of(changed)).peak
        assert change.peak == planned < before


def test_nothing_is_moved_to_a_host_that_is_the_device() -> None:
    config = run_config(phases=[PHASE], parallel={"micro_batch_size": 1})
    keys = {change.key for change in helpful_changes(config, 4, number=20)}
    on_cpu = {change.key for change in helpful_changes(config, 4, offload=False, number=20)}
    assert keys - on_cpu == {"cpu_offload"}  # activations as small as these are not worth sending


def test_more_ranks_are_the_last_resort() -> None:
    parallel = {"micro_batch_size": 1, "recompute": "full", "dp_shard": 2}
    config = run_config(phases=[PHASE | {"seq_len": 8, "batch_size": 2}], parallel=parallel)
    assert helpful_changes(config, 2, offload=False) == []
