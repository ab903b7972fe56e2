"""Rollouts of a run whose engine reads the trainer's weights."""

from dataclasses import replace

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.config.schema import RunConfig
from glmforge.errors import ConfigError
from glmforge.plan.counts.memory import kv_cache_bytes_per_token
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.serving.on_shards import ShardRollout, rollout_on_shards
from glmforge.plan.stages.rollout_batch import RolloutBatch, batch_of, packed, parse_rollout

H100 = find_machine("h100-80gb")


def run(*overrides: str) -> RunConfig:
    return load_config("grpo_air_64gpu", list(overrides))


def sampled(*overrides: str, **changes: int) -> ShardRollout:
    config = run(*overrides)
    batch = batch_of(config)
    assert batch is not None
    return rollout_on_shards(config, resolve_layout(config, 64), H100, replace(batch, **changes))


def test_a_batch_is_what_the_configuration_says() -> None:
    assert batch_of(run()) == RolloutBatch(64, 16, 1024, 7168, 14336)
    assert batch_of(load_config("dpo_air")) is None


def test_answers_become_full_rows() -> None:
    config = run()
    batch = batch_of(config)
    assert batch is not None
    found, line = packed(config, batch, 64)
    rows = found.phases[0].batch_size
    assert rows % 64 == 0
    assert rows * 16384 >= batch.tokens > (rows - 64) * 16384
    assert f"planned as {rows:,} rows of 16,384" in line


def test_lengths_alone_are_changed() -> None:
    batch = RolloutBatch(64, 16, 1024, 7168, 14336)
    assert parse_rollout("response=512", batch) == replace(batch, response_tokens=512)
    with pytest.raises(ConfigError, match=r"samples is what the configuration says; set rl\.rollout\.group_size"):
        parse_rollout("samples=2", batch)


def test_a_rank_samples_its_prompts_answers_together() -> None:
    """The cache holds all 16: a step for each token of the mean answer, and the longest one goes on alone."""
    found = sampled()
    assert found.step.batch == 16
    assert found.generate == pytest.approx(7168 * found.step.seconds)
    assert found.tail > 0
    assert sampled(longest=7168).tail == 0


def test_half_of_the_cache_is_half_of_the_answers() -> None:
    whole, half = sampled(), sampled("rl.rollout.cache_bytes=7500000000")
    assert half.step.batch == whole.step.batch // 2
    assert half.generate > whole.generate


def test_weights_that_may_not_stay_are_gathered_for_every_token() -> None:
    kept, none = sampled(), sampled("rl.rollout.weight_bytes=1")
    assert (kept.passing_bytes, kept.kept_bytes) == (0, pytest.approx(none.passing_bytes))
    assert none.step.seconds > kept.step.seconds + 0.9 * kept.gather
    assert 20e9 < kept.kept_bytes < 30e9  # a sixteenth of the experts, and all of the rest, in bf16


def test_a_cache_that_holds_no_answer_is_refused() -> None:
    needed = int((1024 + 14336) * kv_cache_bytes_per_token(run().model))
    with pytest.raises(ConfigError, match=rf"set it to at least {needed:,}"):
        sampled("rl.rollout.cache_bytes=1000000000")
