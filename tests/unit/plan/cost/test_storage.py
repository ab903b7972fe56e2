"""Bytes of checkpoints against the tensors that a run saves, and retention against the policy's own rule."""

import shutil
from pathlib import Path

import pytest

from glmforge import load_config
from glmforge.backend.native import NativeBackend
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.config.lora import LoraConfig
from glmforge.config.schema import RunConfig
from glmforge.parallel.world import World
from glmforge.plan.cost.storage import restart_interval, room_for, storage_of
from glmforge.plan.stages.stage import find_stage

RUN = """
name: run
model: tiny
data: {tokenizer: none, sources: [{name: text, path: none}]}
phases: [{name: main, steps: 1000, seq_len: 16, batch_size: 4}]
precision: {compute: fp32}
"""


def with_checkpoints(**settings: object) -> RunConfig:
    return load_config(RUN).model_copy(update={"checkpoint": CheckpointConfig.model_validate(settings)})


@pytest.mark.parametrize(
    "overrides",
    [[], ["optim.matrix_optimizer=adamw"], ["optim.state_dtype=bf16"], ["optim.rules=[{match: '*mlp*', lr_scale: 0}]"]],
    ids=["muon", "adamw", "bf16 states", "frozen"],
)
def test_a_checkpoint_has_the_bytes_of_the_tensors_that_are_saved(overrides: list[str]) -> None:
    config = load_config(RUN, overrides)
    tensors = NativeBackend.build(config, World.single("cpu")).state_tensors()
    storage = storage_of(config)
    sizes = {
        prefix: sum(t.numel() * t.element_size() for name, t in tensors.items() if name.startswith(prefix))
        for prefix in ("model.", "optim.")
    }
    assert (storage.weights, storage.optimizer) == (sizes["model."], sizes["optim."])


def test_a_checkpoint_of_adapters_has_nothing_of_the_base() -> None:
    """Rank 16 on Air's q, k, v and o: 31,653,888 weights, AdamW's two moments of each and 368 numbers of steps."""
    config = load_config("configs/pretrain_glm45_air_106b.yaml", ["optim.matrix_optimizer=adamw"])
    storage = storage_of(config, find_stage("lora", LoraConfig(rank=16)))
    assert (storage.weights, storage.optimizer) == (4 * 31_653_888, 8 * 31_653_888 + 4 * 368)


def kept_by_the_rule(steps: list[int], keep_last: int, keep_every: int | None) -> int:
    """`checkpoint.policy.retain` told step by step."""
    kept: list[int] = []
    for step in steps:
        kept = [*kept, step]
        old = kept[:-keep_last]
        kept = [s for s in old if keep_every is not None and s % keep_every == 0] + kept[-keep_last:]
    return len(kept)


@pytest.mark.parametrize("every", [7, 100, 250, 1000, 3000])
@pytest.mark.parametrize("keep_every", [None, 100, 300, 500])
@pytest.mark.parametrize("keep_last", [1, 3])
@pytest.mark.parametrize("save_final", [True, False])
def test_what_is_kept_is_what_the_policy_keeps(
    every: int, keep_every: int | None, keep_last: int, save_final: bool
) -> None:
    storage = storage_of(
        with_checkpoints(every_steps=every, keep_every_steps=keep_every, keep_last=keep_last, save_final=save_final)
    )
    steps = [step for step in range(1, 1001) if step % every == 0 or (save_final and step == 1000)]
    assert storage.lasting_saves == len(steps)
    assert storage.lasting_kept == kept_by_the_rule(steps, keep_last, keep_every)


@pytest.mark.parametrize(("every", "kept"), [(100, 3), (500, 2), (1000, 1)])
def test_the_best_one_is_kept_besides(every: int, kept: int) -> None:
    keep_best = {"metric": "nll", "mode": "min"}
    assert storage_of(with_checkpoints(every_steps=every, keep_last=2, keep_best=keep_best)).lasting_kept == kept


def test_ephemeral_checkpoints_lie_where_the_settings_say() -> None:
    shared = storage_of(with_checkpoints(every_steps=100, ephemeral_every_steps=10, keep_ephemeral=2))
    local = storage_of(with_checkpoints(every_steps=100, ephemeral_every_steps=10, keep_ephemeral=2, local_dir="/fast"))
    assert shared.ephemeral_saves == local.ephemeral_saves == 90
    size = shared.checkpoint
    assert (shared.shared_peak, shared.local_peak) == (6 * size, 0)  # 3 permanent, 2 ephemeral, one being written
    assert (local.shared_peak, local.local_peak) == (4 * size, 3 * size)
    assert (shared.written_to_shared, local.written_to_shared) == (100 * size, 10 * size)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"every_steps": 100, "ephemeral_every_steps": 10}, 10),
        ({"every_steps": 100, "ephemeral_every_steps": 10, "local_dir": "/fast"}, 100),
        ({"ephemeral_every_steps": 10, "local_dir": "/fast"}, 1000),
        ({}, 1000),
    ],
)
def test_a_lost_node_takes_its_own_checkpoints_along(settings: dict[str, object], steps: int) -> None:
    assert restart_interval(CheckpointConfig.model_validate(settings), 1000) == steps


def test_room_is_that_of_the_file_system_a_run_will_write_to(tmp_path: Path) -> None:
    free, words = room_for(tmp_path / "runs" / "new")
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.01)
    assert str(tmp_path) in words
    assert room_for(tmp_path, 10**12) == (10**12, "are given (disk_bytes)")


def test_token_shards_of_a_large_vocabulary_take_four_bytes_a_token() -> None:
    assert storage_of(load_config(RUN)).token_shards == 2 * 1000 * 4 * 16
    large = load_config(RUN, ["model.vocab_size=70000"])
    assert storage_of(large).token_shards == 4 * 1000 * 4 * 16
