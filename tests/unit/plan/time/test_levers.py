"""What would help is what was missing."""

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.time.levers import step_levers
from glmforge.plan.time.step_time import predict_step

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 4096, batch_size: 64}]
parallel: {micro_batch_size: 1}
"""


@pytest.mark.parametrize(
    ("world_size", "overrides", "setting"),
    [
        (8, [], "parallel.compile=true"),
        (8, ["parallel.recompute=full", "phases.0.seq_len=65536"], "parallel.recompute=none"),
        (8, ["phases.0.seq_len=131072"], "kernels.attention=flash3"),
        (32, ["parallel.ep=32"], "parallel.ep_dispatch=deepep"),
        (32, ["parallel.pp=4", "phases.0.batch_size=32"], "parallel.pipeline_schedule=zbv"),
    ],
)
def test_a_lever_saves_what_changing_its_setting_does(world_size: int, overrides: list[str], setting: str) -> None:
    config = load_config(RUN, overrides)
    layout, machine = resolve_layout(config, world_size), find_machine("h200", "tcp30")
    levers = step_levers(config, layout, machine)
    assert [lever.seconds for lever in levers] == sorted((lever.seconds for lever in levers), reverse=True)
    assert min(lever.seconds for lever in levers) > 0.004 * predict_step(config, layout, machine).seconds
    lever = next(lever for lever in levers if lever.setting is not None and setting in lever.setting.split())
    changed = load_config(RUN, overrides + lever.setting.split())
    now = predict_step(config, layout, machine).seconds
    then = predict_step(changed, resolve_layout(changed, world_size), machine).seconds
    assert now - then == pytest.approx(lever.seconds)


def test_a_slow_network_is_named_where_ranks_wait_for_it() -> None:
    config = load_config(RUN)
    found = {
        world_size: [lever.words for lever in step_levers(config, resolve_layout(config, world_size), machine)]
        for world_size, machine in ((8, find_machine("h200", "tcp30")), (16, find_machine("h200", "tcp30")))
    }
    assert "twice the network bandwidth" in found[16]
    assert "twice the network bandwidth" not in found[8]
