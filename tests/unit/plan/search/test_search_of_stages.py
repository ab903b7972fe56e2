"""A search for the layout of a stage that does not train everything."""

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import LoraConfig
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.search.search import search_layouts
from glmforge.plan.stages.stage import find_stage
from glmforge.plan.time.step_time import predict_step

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 16384, batch_size: 16}]
optim: {matrix_optimizer: adamw}
parallel: {micro_batch_size: 1, recompute: full}
"""
LORA = find_stage("lora", LoraConfig(rank=16))


@pytest.mark.parametrize(
    ("gpus", "ranks_per_node", "overrides"),
    [(8, 4, ["phases.0.batch_size=8", "phases.0.seq_len=1024"]), (16, 8, ["phases.0.batch_size=32"])],
)
def test_lora_has_a_copy_on_each_node_of_a_slow_network(gpus: int, ranks_per_node: int, overrides: list[str]) -> None:
    config = load_config(RUN, overrides)
    found = search_layouts(config, gpus, find_machine("H200 SXM", "tcp25", ranks_per_node), stage=LORA)
    best = found.ranked[0]
    assert gpus // best.layout.dp_replicate <= ranks_per_node  # one copy on a node, or several
    assert {link.axis for link in best.time.links if link.into_node} == {"dp_replicate"}


def test_gathers_across_nodes_are_what_a_copy_on_each_saves() -> None:
    """Air at 16K on two nodes of eight: about 436 GB into each node and 116 s at 30 Gbit/s, less the sixteenth of each
    layer that a rank has itself; against the adapters' gradients, 0.13 GB."""
    machine = find_machine("H100 SXM", "tcp30")
    found = []
    for copies in (1, 2):
        config = load_config(RUN, [f"parallel.dp_replicate={copies}"])
        found.append(predict_step(config, resolve_layout(config, 16), machine, stage=LORA))
    shards, copied = found
    assert sum(link.into_node for link in shards.links) == pytest.approx(436e9 * 15 / 16, rel=0.005)
    assert shards.seconds - copied.seconds == pytest.approx(116 * 15 / 16, rel=0.1)  # some of it beside computation
    assert sum(link.into_node for link in copied.links) == pytest.approx(0.127e9, rel=0.01)
