"""What a run of adapters over two hosts sends over the link between them: counted by the network, not by us.

Gloo sums and gathers around a ring, and on two hosts of two ranks each the ring crosses the link once in each
direction. Of n ranks one sends (n - 1) / n of what is gathered to its neighbour, and twice that of what is summed; its
reduce-scatter is a sum of which it keeps a part.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.adapters import is_adapter, table_with
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.collectives import Group, link_bytes
from glmforge.plan.stages.stage import stage_of
from glmforge.plan.work.traffic import ranks_per_node, step_traffic
from helpers.distributed import run_ranks
from helpers.linked_hosts import OVERHEAD, LinkedHost, linked_hosts
from helpers.linked_runs import ONE_COPY, ONE_COPY_PER_HOST, Counts, count_link_bytes, linked_run, write_base
from helpers.tiny_data import TinyData

FP32, BF16 = 4, 2
RANKS_PER_HOST = 2
SMALL_SUMS = 6_000
"""Bytes that a step sends for denominators, gradient norm, router counts and metrics: four sums of at most 640 bytes
around a ring, of six messages each."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LinkedHost, LinkedHost]]:
    with linked_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_data: TinyData) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "hf", tiny_data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_data: TinyData, base: Path, hosts: tuple[LinkedHost, ...]):
    """What rank 0 has counted in a run with these sections."""

    def run(**sections: Any) -> tuple[RunConfig, Counts]:
        directory = tmp_path_factory.mktemp("run") / "run"
        config = linked_run(tiny_data, directory, base, checkpoint={"save_final": False}, **sections)
        return config, run_ranks(count_link_bytes, 4, config, hosts=hosts, init_group=False)[0]

    return run


def adapter_bytes(config: RunConfig) -> int:
    """Of the gradients of all adapters, in fp32."""
    return FP32 * sum(row.size for row in table_with(config.model, config.lora).values() if is_adapter(row))


def gathered_bytes(config: RunConfig) -> int:
    """Of all weights, in bf16 but for the routers, each gathered as often as FSDP does in a step: for the forward pass,
    and but for those that belong to no layer, for the backward pass."""
    rows = [row for row in table_with(config.model, config.lora).values() if row.trained]
    sizes = [(FP32 if "mlp.gate." in row.name else BF16) * row.size for row in rows]
    return sum(size * (1 if row.layer is None else 2) for row, size in zip(rows, sizes, strict=True))


def planned_bytes(config: RunConfig) -> float:
    """What by plan enters a host in a step, where ranks of a host do not use the link."""
    layout = resolve_layout(config, 4)
    found = 0.0
    for traffic in step_traffic(config, layout, stage=stage_of(config)):
        group = Group(traffic.num_ranks, ranks_per_node(layout, traffic.axis, RANKS_PER_HOST))
        found += RANKS_PER_HOST * link_bytes(traffic.kind, traffic.bytes, group).outside
    return found


def assert_sends(counts: Counts, payload: float) -> None:
    for sent in counts.per_step:
        assert payload < sent < OVERHEAD * payload + SMALL_SUMS


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_with_a_copy_per_host_only_gradients_of_adapters_cross_the_link(run: Any, micro_batches: int) -> None:
    """Each of the two ranks of a host sums its half of them with one rank of the other: half of that twice."""
    parallel = ONE_COPY_PER_HOST | {"micro_batch_size": 2 // micro_batches}
    config, counts = run(parallel=parallel)
    assert_sends(counts, adapter_bytes(config))
    assert planned_bytes(config) == adapter_bytes(config)


def test_fsdp_over_both_hosts_gathers_the_model_over_the_link(run: Any) -> None:
    config, counts = run(parallel=ONE_COPY)
    payload = (gathered_bytes(config) + 2 * adapter_bytes(config)) * 3 / 4
    assert_sends(counts, payload)
    assert payload > 15 * adapter_bytes(config)
    # NCCL's reduce-scatter sends half of what a sum does.
    assert planned_bytes(config) == payload - adapter_bytes(config) * 3 / 4


def test_an_evaluation_sends_one_small_sum_over_the_link(run: Any) -> None:
    """Of 48 bytes, in six messages. There are many batches, whose forward passes stay within each host."""
    observe = {"progress": False, "tensorboard": False, "evaluate_every": 2}
    _, counts = run(observe=observe)
    assert len(counts.evaluations) == 3
    for before, after in counts.evaluations:
        assert 48 < after.sent - before.sent < SMALL_SUMS
