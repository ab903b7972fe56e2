"""What is said of layouts that cannot be, and of those that should not."""

from pathlib import Path

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.errors import ConfigError
from glmforge.plan.layout import select_phase
from glmforge.plan.machine.machine import find_machine
from glmforge.plan.search.propose import propose_settings, with_proposal
from glmforge.plan.search.warnings import layout_warnings

CONFIGS = Path(__file__).parents[4] / "configs"


@pytest.mark.parametrize(
    ("file", "world_size", "overrides"),
    [
        ("scaled_down_64gpu", 64, ["parallel.ep=3"]),
        ("scaled_down_64gpu", 64, ["parallel.tp=3"]),
        ("scaled_down_64gpu", 24, []),
        ("pretrain_glm45_355b", 4096, ["parallel.pp=5"]),
        ("pretrain_glm45_355b", 2048, ["parallel.pipeline_schedule=1f1b"]),
        ("demo", 2, ["parallel.pp=3"]),
    ],
)
def test_what_is_proposed_works(file: str, world_size: int, overrides: list[str]) -> None:
    config = load_config(CONFIGS / f"{file}.yaml", overrides)
    proposal = propose_settings(config, world_size)
    if proposal is None:
        assert world_size == 24  # batches of 1,024 do not divide by 3
        return
    again = load_config(CONFIGS / f"{file}.yaml", [*overrides, *proposal.split()])
    assert resolve_layout(again, world_size).world_size == world_size


def test_with_a_machine_the_proposal_fits_it() -> None:
    config = load_config(CONFIGS / "pretrain_glm45_air_106b.yaml", ["parallel.pp=5"])
    machine = find_machine("H100 SXM")
    error = with_proposal(ConfigError("parallel.pp: 5 no"), config, 16, machine)
    assert str(error) == "parallel.pp: 5 no; with this model and these batches no layout fits 16 x H100 SXM"


@pytest.mark.parametrize(
    ("file", "overrides", "world_size", "named"),
    [
        ("pretrain_glm45_355b", [], 1024, "parallel.micro_batch_size"),
        ("pretrain_glm45_355b", ["phases.0.batch_size=256", "phases.0.batch_ramp=null"], 8192, "parallel.pp"),
        ("pretrain_glm45_355b", ["parallel.cp=16"], 8192, "phases"),
        ("pretrain_glm45_355b", ["parallel.pipeline_schedule=zbv"], 8192, "parallel.recompute"),
        ("scaled_down_64gpu", ["parallel.dp_replicate=64", "parallel.cp=1", "parallel.ep=1"], 64, "parallel.dp_rep"),
    ],
)
def test_what_makes_no_sense_is_said(file: str, overrides: list[str], world_size: int, named: str) -> None:
    config = select_phase(load_config(CONFIGS / f"{file}.yaml", overrides), "general")
    warnings = layout_warnings(config, resolve_layout(config, world_size))
    assert any(line.startswith(named) for line in warnings), warnings


def test_a_sensible_layout_is_not_warned_about() -> None:
    config = select_phase(load_config(CONFIGS / "scaled_down_64gpu.yaml"), "general")
    assert layout_warnings(config, resolve_layout(config, 64), find_machine("H100 SXM")) == []
