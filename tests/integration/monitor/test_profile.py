"""Real steps, profiled: the parts add up to the step, and the first advice names the fault that was planted.

What is asserted is accounting and order, not speed.
"""

import json
from pathlib import Path

import pytest

from glmforge.doctor.profile.advice import advise
from glmforge.doctor.profile.ranges import MODEL_PHASES
from glmforge.doctor.profile.train import step_seconds_of
from helpers.command import Commands, write_config
from helpers.distributed import run_ranks
from helpers.profile_faults import FAULTS, profiled, run_of
from helpers.tiny_data import TinyData


@pytest.mark.parametrize("fault", [name for name in FAULTS if not name.startswith("none")])
def test_the_first_advice_is_right_and_the_parts_add_up(fault: str, tiny_data: TinyData, tmp_path: Path) -> None:
    ranks, _, settings = FAULTS[fault]
    config = run_of(tiny_data, tmp_path, **settings)
    found = run_ranks(profiled, ranks, config, fault, init_group=False)[0]
    assert len(found.ranks) == ranks
    for rank in found.ranks:
        assert rank.parts.total == pytest.approx(rank.profiled_s, rel=0.03)
        for phase in MODEL_PHASES:
            assert rank.parts.phases[phase]["forward"] > 0
            # The loss head makes its gradients forward, all others have a pass of their own.
            assert phase == "loss head" or rank.parts.phases[phase]["backward"] > 0
    first, *others = advise(found)
    assert first.rule == fault, [first, *others]
    assert (found.ranks[0].parts.of("recompute") > 0) == (fault == "recompute")
    if fault == "slow link":
        assert "along ep" in first.text
    if fault == "imbalanced experts":
        assert "rank 0's experts" in first.text
        assert found.expert_load == pytest.approx(2.0)
    assert not (tmp_path / "run").exists()


def test_the_command(tiny_data: TinyData, tmp_path: Path, commands: Commands) -> None:
    """A profile on file is what the loader's is compared with; a trace has the ranges."""
    config = run_of(tiny_data, tmp_path)
    file, trace = tmp_path / "train.json", tmp_path / "trace"
    run = commands.start(
        "profile", "train", write_config(config), "--steps", "2", "--output", str(file), "--trace", str(trace)
    )
    assert run.wait() == 0, run.output
    content = json.loads(file.read_text())
    assert content["accounted"] == pytest.approx(1, abs=0.03)
    assert 0 < step_seconds_of(file) < content["step_s"]
    names = {event["name"] for event in json.loads((trace / "rank-00000.trace.json").read_text())["traceEvents"]}
    assert "glmforge.phase:experts" in names
    assert "accounted for" in run.output
