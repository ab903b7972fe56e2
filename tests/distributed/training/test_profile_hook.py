"""Rank 0 alone knows how many steps; all ranks count them, the first and the last one profile."""

import gzip
import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from glmforge.config.layout import Layout
from glmforge.observe.control import Command, send_command
from glmforge.observe.run import record_event
from glmforge.parallel.world import World
from glmforge.training.hooks.communication import CommunicationHook
from glmforge.training.hooks.control import ControlHook
from glmforge.training.hooks.profile import ProfileHook
from glmforge.training.profiling import Profiling
from helpers.distributed import run_ranks
from helpers.hooks import FakeTrainer, events


class Trainer(FakeTrainer):
    """Its ranks agree on the vote by a sum, and multiply once in a step."""

    def compute(self) -> None:
        torch.ones(3, 3) @ torch.ones(3, 3)

    def agreed_votes(self) -> frozenset[str]:
        raised = torch.tensor([float("profile" in self.votes)])
        dist.all_reduce(raised)
        return frozenset({"profile"}) if raised.item() else frozenset()


def rank_profiled(root: Path, steps: int) -> list[bool]:
    """In which of 8 steps communication was measured; before step 3 somebody asks for a profile of `steps` steps."""
    world = World.join(Layout(dp_shard=3), torch.device("cpu"))
    profiling = Profiling()
    profile = ProfileHook(root, profiling)
    trainer = Trainer(CommunicationHook(profiling, 1), ControlHook(root, profiling), profile, world=world, root=root)
    if world.is_main:
        record_event(root, "started", step=0)
    trainer.start()
    measured = []
    for step in range(8):
        if step == 2 and world.is_main:
            send_command(root, Command("profile", steps))
        trainer.step()
        measured.append("comm_bytes_other" in trainer.bus.recorded_after(trainer.state.step))
    profile.close()
    return measured


@pytest.mark.parametrize(("steps", "paused"), [(2, [3, 4]), (100, [3, 4, 5, 6, 7])])
def test_a_profile_of_a_live_run(tmp_path: Path, steps: int, paused: list[int]) -> None:
    for measured in run_ranks(rank_profiled, 3, tmp_path, steps):
        # A process's first step is never measured, those of the profile are not either.
        assert measured == [step > 0 and step not in paused for step in range(8)]
    folder = tmp_path / "profile" / "step-00000003"
    names = {f"rank-{rank:05d}.{ending}" for rank in (0, 2) for ending in ("txt", "trace.json.gz")}
    assert {path.name for path in folder.iterdir()} == names
    with gzip.open(folder / "rank-00002.trace.json.gz", "rt") as file:
        calls = [event for event in json.load(file)["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(calls) == len(paused)
    assert "aten::mm" in (folder / "rank-00000.txt").read_text()
    last = 3 + len(paused)
    assert events(tmp_path)[1:] == [
        ("control", 2, f"profile {steps}"),
        ("profiled", last, f"steps 4 to {last}, in {folder}"),
    ]


def test_a_profile_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("in the way")
    profiling = Profiling()
    trainer = FakeTrainer(ProfileHook(tmp_path, profiling), root=tmp_path)
    assert profiling.request(1)
    assert not profiling.request(1)
    trainer.vote("profile")
    trainer.step()
    assert not profiling.request(1)
    trainer.step()
    assert [event for event, _, _ in events(tmp_path)] == ["profile not written"]
    assert profiling.request(1)
