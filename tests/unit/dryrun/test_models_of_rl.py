"""The dry run of reinforcement learning: the policy's step with all models in memory, and its place in a plan."""

import pytest

from glmforge.config import load_config
from glmforge.dryrun.report import notes, planned_memory
from glmforge.dryrun.run import dry_run
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose
from glmforge.plan.stages.stage import stage_of

SMALL = ("model=tiny", "parallel.dp_shard=4", "parallel.ep=2", "phases.0.seq_len=256", "phases.0.batch_size=16")
ANSWERS = ("rl.rollout.max_new_tokens=192", "rl.rollout.max_prompt_tokens=64", "rl.rollout.cache_bytes=1000000000000")


def test_all_models_are_held_during_the_policys_step() -> None:
    config = load_config("ppo_air", [*SMALL, *ANSWERS])
    found, stage = dry_run(config, 4), stage_of(config)
    (kind,) = found.classes
    (place,) = estimate_memory(config, found.layout, stage).places
    held = kind.findings.held
    assert held[Purpose.WEIGHTS] + held[Purpose.OPTIMIZER] == pytest.approx(
        sum(size for _, size in place.held), rel=0.01
    )
    assert kind.step.at_peak[Purpose.WEIGHTS] == held[Purpose.WEIGHTS]
    assert any("nothing is sampled" in note for note in notes(found))
    (planned,) = planned_memory(found, stage).estimate.places
    assert planned.moment == "rollout"
    assert planned.peak > 10**12 > found.peak
