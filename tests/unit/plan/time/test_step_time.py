"""A step's time: its parts, its timeline, and what can only make it longer or shorter."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import parse_lora
from glmforge.errors import ConfigError
from glmforge.plan.machine.machine import Machine, find_machine
from glmforge.plan.machine.provenance import Provenance
from glmforge.plan.stages.stage import find_stage
from glmforge.plan.time.ledger import make_ledger
from glmforge.plan.time.step_time import StepTime, predict_step
from helpers.rl_stages import policy

RUN = """
name: run
model: glm45_air_106b
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases: [{name: main, steps: 1, seq_len: 4096, batch_size: 512}]
parallel: {micro_batch_size: 1}
"""
LAYOUTS = {
    "fsdp": (64, []),
    "ep": (64, ["parallel.ep=16"]),
    "hsdp": (64, ["parallel.dp_replicate=8", "parallel.ep=8", "parallel.recompute=full"]),
    "tp": (64, ["parallel.tp=4", "parallel.ep=4"]),
    "cp": (64, ["parallel.cp=4", "parallel.recompute=selective"]),
    "1f1b": (64, ["parallel.pp=4", "parallel.ep=8"]),
    "zbv": (64, ["parallel.pp=4", "parallel.pipeline_schedule=zbv", "parallel.ep=4"]),
    "interleaved": (
        128,
        ["parallel.pp=8", "parallel.pipeline_schedule=interleaved_1f1b", "parallel.ep=16"],
    ),
}


LOWER_HALF_FROZEN = (
    "[{match: '*embed*', lr_scale: 0}, {match: 'model.layers.?.*', lr_scale: 0}, "
    "{match: 'model.layers.1?.*', lr_scale: 0}, {match: 'model.layers.2[012].*', lr_scale: 0}]"
)
"""Of Air's 46 layers."""


def step(name: str, machine: Machine, overrides: list[str] | None = None, **options: float) -> StepTime:
    world_size, settings_ = LAYOUTS[name]
    config = load_config(RUN, settings_ + (overrides or []))
    return predict_step(config, resolve_layout(config, world_size), machine, **options)


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_add_up_to_the_timeline_s_end(name: str) -> None:
    found = step(name, find_machine("h100-80gb"))
    assert max(span.stop for span in found.timeline) == pytest.approx(found.seconds)
    assert found.parts.keys() == found.provenance.keys()
    assert found.provenance["compute"] == Provenance.CALIBRATED
    assert {span.pp_rank for span in found.timeline} == set(range(found.layout.pp))
    assert 0.02 < found.utilisation < 0.6


@settings(max_examples=25, deadline=None)
@given(name=st.sampled_from(list(LAYOUTS)), faster=st.floats(1.0, 20.0), flops=st.floats(1.0, 4.0))
def test_faster_machines_are_never_slower(name: str, faster: float, flops: float) -> None:
    machine = find_machine("b200", "roce200")
    network = machine.network._replace(bandwidth=faster * machine.network.bandwidth)
    gpu = machine.accelerator
    device = gpu._replace(
        bf16_flops=flops * gpu.bf16_flops, fp32_flops=flops * gpu.fp32_flops, memory_bandwidth=flops * 7.7e12
    )
    slow = step(name, machine).seconds
    assert step(name, replace(machine, network=network)).seconds <= slow * (1 + 1e-12)
    assert step(name, replace(machine, accelerator=device)).seconds <= slow * (1 + 1e-12)


def test_what_is_gathered_over_two_nodes_comes_from_the_other() -> None:
    """A copy in each node leaves only gradients to be exchanged between them."""
    machine = find_machine("h200", "tcp30")
    once = "parallel.reduce_gradients=last_micro_batch"
    config = load_config(RUN, [once])
    over_both = predict_step(config, resolve_layout(config, 16), machine)
    config = load_config(RUN, ["parallel.dp_replicate=2", once])
    one_each = predict_step(config, resolve_layout(config, 16), machine)
    assert sum(link.into_node for link in one_each.links) < 0.1 * sum(link.into_node for link in over_both.links)
    assert one_each.seconds < 0.5 * over_both.seconds


def test_imbalance_costs_what_the_busiest_rank_has_more() -> None:
    even, uneven = (step("ep", find_machine("h100"), imbalance=value) for value in (1.0, 1.5))
    assert "imbalance" not in even.parts
    # The experts' products are about a third of what Air computes.
    assert 0.1 < uneven.parts["imbalance"] / even.parts["compute"] < 0.25
    assert uneven.parts["ep"] > 1.5 * even.parts["ep"]  # the shared expert hides no more of it than before


def test_fp8_is_faster_where_there_is_fp8() -> None:
    fp8 = ["precision.low_precision=fp8"]
    assert step("ep", find_machine("h100"), fp8).parts["compute"] < step("ep", find_machine("h100")).parts["compute"]
    with pytest.raises(ConfigError, match="A100 SXM 80GB has no fp8"):
        step("ep", find_machine("a100-80gb"), fp8)


def test_offload_is_visible_as_far_as_it_is_slower_than_computing() -> None:
    machine = find_machine("h100")
    base, saved = step("fsdp", machine), step("fsdp", machine, ["parallel.activation_offload=true"])
    assert saved.seconds == pytest.approx(base.seconds + saved.parts.get("offload", 0.0))
    long = ["parallel.activation_offload=true", "parallel.recompute=full"]
    assert "offload" not in step("fsdp", machine, long).parts
    states = step("fsdp", machine, ["parallel.cpu_offload=true"])
    assert states.parts["update"] > 10 * base.parts["update"]
    assert states.provenance["update"] == Provenance.CALIBRATED


def test_checkpoints_and_muon_s_exchange_by_hand() -> None:
    """Air's 106.85 G trained parameters (its MTP layer has no loss here) are held as fp32 with a momentum of 4 bytes
    (matrices) or two states (others), each shard on one of 64 ranks, and copied over PCIe 5.0 at 50 GB/s every tenth
    step. Of the matrices each rank sends its 1/64 in bf16 once, and gets as much back."""
    machine = find_machine("h100")
    found = step("fsdp", machine, ["checkpoint.every_steps=10", "phases.0.mtp_loss_weight=0"])
    assert found.parts["checkpoint"] == pytest.approx(106.85e9 * 8 / 64 / 50e9 / 10, rel=0.02)
    assert found.provenance["checkpoint"] == Provenance.ASSUMED
    bytes_over_adapters = 2 * 2 * 106.23e9 / 64 * 56 / 64
    assert found.parts["exchange"] == pytest.approx(bytes_over_adapters / (0.95 * 50e9), rel=0.05)
    adamw = step("fsdp", machine, ["optim.matrix_optimizer=adamw"])
    assert "exchange" not in adamw.parts


def test_the_same_question_has_the_same_answer() -> None:
    """Whatever was asked before: other layouts' pieces are remembered between calls."""
    machine = find_machine("h100")
    first = {name: step(name, machine).parts for name in LAYOUTS}
    again = {name: step(name, machine).parts for name in reversed(LAYOUTS)}
    assert first == again
    assert step("ep", find_machine("h200")).parts != first["ep"]


@pytest.mark.parametrize(("seq_len", "least", "most"), [(1024, 0.6, 1.0), (32768, 0.1, 0.25)])
def test_fsdp_s_traffic_hides_behind_long_computations(seq_len: int, least: float, most: float) -> None:
    """Short ones hide little of it; long ones all but the first gather and the last reduction, and are a seventh of its
    time slower for the processors that it takes."""
    found = step("fsdp", find_machine("h100"), [f"phases.0.seq_len={seq_len}"])
    in_all = sum(link.seconds for link in found.links if link.axis == "fsdp")
    assert least < found.parts["fsdp"] / in_all < most


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("fsdp", ["parallel.recompute=full"]),
        ("fsdp", ["parallel.recompute=full", f"optim.rules={LOWER_HALF_FROZEN}"]),
        ("tp", []),
        ("1f1b", []),
        ("1f1b", ["optim.rules=[{match: '*experts*', lr_scale: 0}, {match: lm_head.weight, lr_scale: 0}]"]),
        ("zbv", ["parallel.recompute=selective"]),
    ],
)
def test_pieces_compute_what_the_operations_of_a_step_do(name: str, overrides: list[str]) -> None:
    """The slowest rank's operations one by one, as the roofline lists them, take as long as its pieces together."""
    world_size, settings_ = LAYOUTS[name]
    config = load_config(RUN, settings_ + overrides)
    layout, machine = resolve_layout(config, world_size), find_machine("h100")
    found = predict_step(config, layout, machine)
    ledger = make_ledger(config, layout, machine.accelerator, found.slowest)
    in_pieces = sum(found.parts.get(part, 0.0) for part in ("compute", "recompute", "update"))
    assert in_pieces == pytest.approx(ledger.total.expected["eager"], rel=1e-3)
    assert found.model_flops == pytest.approx(
        sum(make_ledger(config, layout, None, pp_rank).model_flops for pp_rank in range(layout.pp))
        * layout.stage_ranks,
        rel=1e-6,
    )


@pytest.mark.parametrize("name", ["sft", "lora", "reward", "policy"])
def test_every_stage_has_a_step(name: str) -> None:
    config = load_config(RUN, ["parallel.dp_replicate=2", "parallel.ep=8"])
    layout, machine = resolve_layout(config, 64), find_machine("h200")
    lora = parse_lora("rank=16,target=self_attn") if name == "lora" else None
    stage = policy() if name == "policy" else find_stage(name, lora)
    whole, found = predict_step(config, layout, machine), predict_step(config, layout, machine, stage=stage)
    assert max(span.stop for span in found.timeline) == pytest.approx(found.seconds)
    if name == "lora":  # a third of the products less, hardly any gradients to reduce
        assert found.parts["compute"] < 0.85 * whole.parts["compute"]
        assert found.parts["fsdp"] < 0.6 * whole.parts["fsdp"]
    if name == "policy":
        assert found.seconds > 1.5 * whole.seconds


def test_of_frozen_lower_layers_the_forward_pass_is_left() -> None:
    """Of the work and of the time, of which norms and gradients that are added up take more backward than forward."""
    machine = find_machine("h100")
    whole, half = (step("fsdp", machine, rules) for rules in ([], [f"optim.rules={LOWER_HALF_FROZEN}"]))
    work = half.model_flops / whole.model_flops
    assert 2 / 3 < work < 0.72  # the upper half, and head and MTP layer
    assert work - 0.1 < half.parts["compute"] / whole.parts["compute"] < work
    assert half.parts["update"] / whole.parts["update"] == pytest.approx(0.5, abs=0.05)


def test_halves_of_a_micro_batch_hide_each_other_s_exchanges() -> None:
    """Where what is computed beside an exchange takes longer, only the processors that it takes are left of it.
    Products of half the tokens are no faster."""
    machine, pairs = find_machine("h100"), ["parallel.micro_batch_size=2"]
    usual, halves = (step("ep", machine, [*pairs, *more]) for more in ([], ["parallel.ep_overlap=true"]))
    assert halves.parts["ep"] < 0.5 * usual.parts["ep"]
    assert usual.parts["compute"] <= halves.parts["compute"] < 1.3 * usual.parts["compute"]
    slow = find_machine("h100", "ib25")
    usual, halves = (step("ep", slow, [*pairs, *more]) for more in ([], ["parallel.ep_overlap=true"]))
    assert 0.5 * usual.parts["ep"] < halves.parts["ep"] < usual.parts["ep"]
