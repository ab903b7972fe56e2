"""The shipped configurations in a dry run: every rank of each fits its GPUs, with a fifth of them to spare.

All places of the pipeline are looked at: the fullest is often neither the first, nor the last, nor a middle one.
`benchmarks/dry_runs.py` does the same with every file and phase, and measures what that costs.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.dryrun.run import dry_run
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.stages.stage import stage_of

DIRECTORY = Path(__file__).parents[3] / "configs"
GPU = 0.8 * 80e9
"""A tenth is for what a dry run does not see, as allocator and NCCL, and a tenth for uneven routing."""


@pytest.mark.parametrize(
    ("name", "world_size", "phase", "overrides"),
    [
        ("curriculum_local", 1, "longest", ()),
        ("small_1b", 1, None, ()),
        pytest.param("scaled_down_64gpu", 64, "long_context", (), marks=pytest.mark.full),
        pytest.param("midtrain_code", 128, None, ("regularization.ewc={fisher: none}",), marks=pytest.mark.full),
        pytest.param("midtrain_32k", 128, None, (), marks=pytest.mark.full),
        pytest.param("midtrain_128k", 128, None, (), marks=pytest.mark.full),
        pytest.param("midtrain_200k", 1024, None, (), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_355b_guide", 8192, "general", (), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_355b_guide", 8192, "mid_training", ("parallel.cp=8",), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_355b", 8192, "general", (), marks=pytest.mark.full),
        pytest.param("pretrain_glm46_355b", 8192, "general", (), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_355b_long", 8192, "long_context_and_agents", (), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_355b_long", 8192, "repository_code", (), marks=pytest.mark.full),
        pytest.param("pretrain_glm45_air_106b", 1024, "general", (), marks=pytest.mark.full),
        pytest.param(
            "pretrain_glm45_air_106b",
            1024,
            "long_context_and_agents",
            ("parallel.recompute=full", "parallel.cp=8"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_fullest_rank_fits(name: str, world_size: int, phase: str | None, overrides: tuple[str, ...]) -> None:
    config = select_phase(load_config(DIRECTORY / f"{name}.yaml", overrides), phase)
    found = dry_run(config, world_size)
    assert {kind.pp_rank for kind in found.classes} == set(range(found.layout.pp))
    assert 0 < found.peak < GPU


@pytest.mark.parametrize(
    ("name", "world_size", "gpu"),
    [
        pytest.param("lora_air_8x80gb", 8, "h100-80gb", marks=pytest.mark.full),
        pytest.param("lora_air_2x8h200", 16, "h200", marks=pytest.mark.full),
        pytest.param("lora_355b_2x8h200", 16, "h200", marks=pytest.mark.full),
        pytest.param("lora_355b_4x8h100", 32, "h100-80gb", marks=pytest.mark.full),
        pytest.param("sft_air_8x8h100", 64, "h100-80gb", marks=pytest.mark.full),
        pytest.param("dpo_air", 64, "h100-80gb", marks=pytest.mark.full),
        pytest.param("reward_air", 64, "h100-80gb", marks=pytest.mark.full),
        pytest.param("grpo_air_64gpu", 64, "h100-80gb", marks=pytest.mark.full),
        pytest.param("ppo_air", 64, "h200", marks=pytest.mark.full),
        pytest.param("grpo_355b", 256, "h200", marks=pytest.mark.full),
    ],
)
def test_the_packaged_fine_tuning_fits(name: str, world_size: int, gpu: str) -> None:
    config = load_config(name)
    found, room = dry_run(config, world_size), find_machine(gpu).accelerator.memory_bytes
    assert 0 < found.peak < 0.8 * room
    # A dry run samples nothing: what the engine needs beside the weights is left to closed forms.
    roles = (replace(role, cache_bytes=0) for role in stage_of(config).roles)
    (place,) = estimate_memory(config, found.layout, replace(stage_of(config), roles=tuple(roles))).places
    # Closed forms take frozen layers to keep what others do, and DPO's head to make gradients in the forward pass.
    assert place.peak == pytest.approx(found.peak, rel=0.12 if config.stage == "dpo" else 0.07)
