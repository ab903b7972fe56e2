"""Seconds of phases: whole steps of the predicted length, ramps between their ends, layouts that do not serve."""

import pytest

from glmforge import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.lora import LoraConfig
from glmforge.errors import ConfigError
from glmforge.plan.cost.phase_time import model_flops, phases_at, predicted_phases
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.stages.stage import find_stage
from glmforge.plan.time.step_time import predict_step

RUN = """
name: run
model: glm_scaled_down
data: {tokenizer: none, sources: [{name: random, path: none}]}
phases:
  - {name: short, tokens: 1e9, seq_len: 4096, batch_size: 256, batch_ramp: {start: 64, increment: 64, tokens: 5e8}}
  - {name: long, steps: 10, seq_len: 32768, batch_size: 8}
parallel: {dp_shard: auto, ep: 8, micro_batch_size: 1}
"""
MACHINE = find_machine("H100 SXM")


def test_a_phase_takes_its_steps_times_the_predicted_seconds() -> None:
    config = load_config(RUN)
    long = select_phase(config, "long")
    step = predict_step(long, resolve_layout(long, 8), MACHINE)
    _, timed = predicted_phases(config, 8, MACHINE)
    assert (timed.name, timed.steps, timed.tokens) == ("long", 10, 10 * 8 * 32768)
    assert timed.seconds == pytest.approx(10 * step.seconds)
    assert timed.model_flops == pytest.approx(10 * step.model_flops, rel=1e-3)  # a causal mask's diagonal apart


def test_a_ramp_takes_what_its_batches_take_one_by_one() -> None:
    """A step's time is a constant and a part for each micro-batch, so nothing is lost between the ends of the ramp."""
    config = select_phase(load_config(RUN), "short")
    (phase,) = config.phases
    seconds = 0.0
    for span in phase.batch_spans:
        steady = phase.model_copy(update={"batch_size": span.batch_size, "batch_ramp": None})
        alone = config.model_copy(update={"phases": [steady]})
        seconds += span.num_steps * predict_step(alone, resolve_layout(alone, 8), MACHINE).seconds
    (timed,) = predicted_phases(config, 8, MACHINE)
    assert len(phase.batch_spans) == 4
    assert timed.seconds == pytest.approx(seconds, rel=0.01)


def test_a_phase_that_the_layout_does_not_serve_says_why() -> None:
    short, long = predicted_phases(load_config(RUN), 16, MACHINE)
    assert short.seconds is not None
    assert long.seconds is None
    assert long.problem is not None
    assert "batch_size" in long.problem


def test_a_phase_does_not_count_its_checkpoints_as_steps() -> None:
    config = load_config(RUN)
    saving = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"every_steps": 1})})
    assert "checkpoint" in predict_step(saving, resolve_layout(saving, 8), MACHINE).parts
    assert predicted_phases(saving, 8, MACHINE) == predicted_phases(config, 8, MACHINE)


def test_bytes_are_those_of_a_step_on_every_rank() -> None:
    """Eight GPUs of one node send nothing between nodes; the same eight as two nodes of four do."""
    config = select_phase(load_config(RUN), "long")
    step = predict_step(config, resolve_layout(config, 8), MACHINE)
    (timed,) = predicted_phases(config, 8, MACHINE)
    assert timed.sent.keys() == {link.axis for link in step.links}
    for link in step.links:
        assert timed.sent[link.axis] == pytest.approx((10 * 8 * link.sent.inside, 0))
    (in_two,) = predicted_phases(config, 8, find_machine("H100 SXM", ranks_per_node=4))
    assert all(sent.outside > 0 for sent in in_two.sent.values())


def test_a_utilisation_needs_no_layout() -> None:
    config = load_config(RUN)
    for timed, phase in zip(phases_at(config, 16, MACHINE, 0.25), config.phases, strict=True):
        assert timed.seconds == pytest.approx(model_flops(config, phase) / (16 * 989.4e12 * 0.25))


def test_adapters_take_two_thirds_of_the_time_at_the_same_utilisation() -> None:
    """Frozen matrices have no gradient of their own; attention, which has no weights, keeps all its work."""
    config = load_config(RUN)
    lora = find_stage("lora", LoraConfig(rank=16))
    for full, adapted in zip(phases_at(config, 8, MACHINE, 0.3), phases_at(config, 8, MACHINE, 0.3, lora), strict=True):
        assert full.seconds is not None
        assert adapted.seconds is not None
        assert 2 / 3 < adapted.seconds / full.seconds < 0.9
    full, adapted = predicted_phases(config, 8, MACHINE)[1], predicted_phases(config, 8, MACHINE, lora)[1]
    assert full.seconds is not None
    assert adapted.seconds is not None
    assert adapted.seconds < full.seconds


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_utilisation_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=r"--mfu: .* 0\.3"):
        phases_at(load_config(RUN), 16, MACHINE, share)
