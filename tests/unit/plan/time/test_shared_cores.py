"""Ranks that share processor cores: what the cores do together, what they wait for, and what a step consists of."""

from dataclasses import replace

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.plan.machine.hardware import Accelerator
from glmforge.plan.machine.machine import Cores, Machine
from glmforge.plan.machine.measured import CollectivePoint, MatmulPoint, MeasuredPoints
from glmforge.plan.machine.network import find_network
from glmforge.plan.time.shared_cores import parts_on_cores, rank_work
from glmforge.plan.time.step_time import predict_step

RUN = """
name: run
model: {preset: tiny, num_hidden_layers: 4}
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 256, batch_size: 16, aux_loss_weight: 0}]
"""
POINTS = MeasuredPoints("a test", (MatmulPoint(256, 256, 256, 1e11),), 1e10)
CPU = Accelerator("CPU", 1e11, None, 1e11, 1 << 34, 1e10, None, "a test", points=POINTS)
FREE = tuple(
    CollectivePoint(kind, 2, 2, 1000, 1e-12)
    for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send")
)
MACHINE = Machine(CPU, find_network("tcp10"), 8, FREE, Cores(2))


def seconds(config: RunConfig, world_size: int, machine: Machine = MACHINE) -> float:
    return sum(parts_on_cores(config, resolve_layout(config, world_size), machine, "eager").values())


def test_two_cores_halve_the_work_of_one_and_more_ranks_do_not_help() -> None:
    config = load_config(RUN)
    one, two, eight = (seconds(config, world_size) for world_size in (1, 2, 8))
    assert two == pytest.approx(one / 2, rel=0.05)  # what each rank does once is not halved
    assert eight == pytest.approx(two, rel=0.2)


def test_busy_cores_are_slower_in_proportion() -> None:
    config = load_config(RUN)
    slower = replace(MACHINE, cores=Cores(2, slowdown=1.5))
    assert seconds(config, 1, slower) == seconds(config, 1)
    assert seconds(config, 4, slower) == pytest.approx(1.5 * seconds(config, 4))


def test_a_pipeline_leaves_cores_idle_only_while_too_few_ranks_have_work() -> None:
    alone = load_config(RUN, ["parallel.pp=2", "parallel.micro_batch_size=4"])
    parts = parts_on_cores(alone, resolve_layout(alone, 2), MACHINE, "eager")
    assert parts["bubble"] == pytest.approx(parts["compute"] / 4)
    with_others = parts_on_cores(alone, resolve_layout(alone, 4), MACHINE, "eager")
    assert with_others["bubble"] == 0


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "sharded"),
        (["parallel.dp_replicate=2"], "replicated"),
        (["parallel.tp=2", "parallel.ep=2"], "other_messages"),
    ],
)
def test_the_host_is_paid_for_operations_and_collectives(overrides: list[str], name: str) -> None:
    config = load_config(RUN, ["parallel.micro_batch_size=2", *overrides])
    layout = resolve_layout(config, 2)
    work = rank_work(config, layout, MACHINE, "eager")
    calls = {"sharded": work.sharded, "replicated": work.replicated, "other_messages": work.other_messages}
    assert [what for what, number in calls.items() if number] == [name]
    costly = replace(MACHINE, cores=Cores(2, 1.0, 1e-3, 1e-2, 1e-2, 1e-2))
    more = seconds(config, 2, costly) - seconds(config, 2)
    assert more == pytest.approx(1e-3 * work.operations + 1e-2 * calls[name])


def test_every_layer_is_gathered_twice_and_reduced_once() -> None:
    config = load_config(RUN, ["parallel.micro_batch_size=2"])
    work = rank_work(config, resolve_layout(config, 2), MACHINE, "eager")
    # Each of 4 micro-batches: 5 layers, 4 of them with a router apart, are gathered twice and
    # reduced once; what belongs to no layer is gathered and reduced once.
    assert work.sharded == 4 * (3 * 9 + 2)


def test_collectives_take_what_was_measured_with_as_many_groups_at_once() -> None:
    config = load_config(RUN, ["parallel.tp=2"])
    kinds = ("all_gather", "reduce_scatter")
    slow = tuple(CollectivePoint(kind, 2, 2, 1000, 1.0, groups) for kind in kinds for groups in (1, 4))
    slow = tuple(point._replace(seconds=float(point.groups)) for point in slow)
    in_groups = replace(MACHINE, collectives=(*slow, *FREE[2:]))
    calls = {}
    for world_size in (2, 8):
        layout = resolve_layout(config, world_size)
        found = parts_on_cores(config, layout, in_groups, "eager")["tp"]
        messages = rank_work(config, layout, in_groups, "eager").messages
        per_kilobyte = {m.bytes: max(1.0, m.bytes / 1000) for m in messages}
        calls[world_size] = found / sum(m.times * per_kilobyte[m.bytes] for m in messages if m.axis == "tp")
    assert calls == {2: pytest.approx(1), 8: pytest.approx(4)}


def test_the_step_of_such_a_machine_has_these_parts() -> None:
    config = load_config(RUN)
    layout = resolve_layout(config, 4)
    step = predict_step(config, layout, MACHINE)
    assert step.seconds == pytest.approx(seconds(config, 4))
    assert set(step.parts) <= set(step.provenance)
