"""The measured peak of a real step: what is in which category."""

from dataclasses import replace

import pytest

from glmforge.config.schema import RunConfig
from glmforge.doctor.profile.memory import MemoryProfile, profile_memory
from glmforge.errors import ConfigError
from glmforge.plan.memory.purposes import Purpose
from helpers.models import run_config, tiny_config


def config_of(vocab_size: int = 512, num_layers: int = 2, **parallel: object) -> RunConfig:
    model = tiny_config(vocab_size=vocab_size, num_hidden_layers=num_layers).model_dump()
    phases = [{"name": "main", "steps": 1, "seq_len": 64, "batch_size": 16}]
    return run_config(model=model, phases=phases, parallel=parallel)


def test_held_tensors_are_the_plans_and_the_total_near_it() -> None:
    found = profile_memory(config_of(num_layers=4))
    for purpose in (Purpose.WEIGHTS, Purpose.OPTIMIZER):
        assert found.measured[purpose] == found.planned[purpose] > 0
    # Measured 0.8 % below the closed form, the same on every machine: storages are counted, not pages.
    assert found.moment == found.planned_moment == "forward"
    assert found.peak == pytest.approx(found.planned_peak, rel=0.03)


def test_a_large_vocabulary_makes_logits_the_largest() -> None:
    """1,024 tokens at once on a CPU: their logits in fp32, and at most once more as their gradient."""
    found = profile_memory(config_of(vocab_size=16_384, recompute="full"))
    logits = 1024 * 16_384 * 4
    assert found.moment == "forward"
    assert logits <= found.measured["logits"] <= 2.1 * logits
    # The weight's gradient, which the head makes along with the loss, is kept.
    assert found.measured[Purpose.ACTIVATIONS] > 16_384 * 48 * 4
    assert found.measured["logits"] > 3 * found.measured[Purpose.ACTIVATIONS]
    assert abs(found.more_than_planned(Purpose.WORKING)) < logits


def test_recomputation_is_seen_in_activations() -> None:
    kept = [profile_memory(config_of(recompute=mode)).measured[Purpose.ACTIVATIONS] for mode in ("none", "full")]
    assert kept[1] < kept[0] / 2


def test_the_largest_difference_is_named() -> None:
    same = MemoryProfile(
        "CPU", 0, {"weights": 100, "activations": 50}, {"weights": 100, "activations": 50}, "a", "a", 0
    )
    assert same.difference == "the plan is exact"
    more = replace(same, measured={"weights": 100, "activations": 20, "logits": 60}, planned_moment="update")
    assert more.difference == (
        "peak +20.0% against the plan (peak in a, by plan update); most of it: 60 B more of working memory"
    )


def test_a_snapshot_needs_a_gpu(tmp_path: object) -> None:
    with pytest.raises(ConfigError, match="--snapshot"):
        profile_memory(config_of(), snapshot=tmp_path)  # type: ignore[arg-type]
