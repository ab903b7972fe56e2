from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glmforge.observe.control import Command, send_command
from glmforge.observe.run import record_event
from glmforge.training.hooks.control import ControlHook
from glmforge.training.profiling import Profiling
from helpers.hooks import FakeTrainer, events


def trainer_of(root: Path, *, busy: bool = False) -> FakeTrainer:
    record_event(root, "started", step=0)
    trainer = FakeTrainer(ControlHook(root, Profiling(steps_left=1 if busy else 0)), root=root)
    trainer.start()
    return trainer


@pytest.mark.parametrize("name", ["save", "stop"])
def test_a_command_becomes_a_flag_before_the_step(tmp_path: Path, name: Any) -> None:
    trainer = trainer_of(tmp_path)
    trainer.step()
    send_command(tmp_path, Command(name))
    trainer.hooks[0].on_step_start(trainer)  # type: ignore[arg-type]
    assert trainer.votes == {name}
    trainer.votes.clear()
    trainer.step()
    assert trainer.votes == set()
    assert events(tmp_path)[1:] == [("control", 1, name)]
    assert not (tmp_path / "control").exists()


@pytest.mark.parametrize("busy", [False, True])
def test_profile_is_passed_on_with_its_steps(tmp_path: Path, busy: bool) -> None:
    trainer = trainer_of(tmp_path, busy=busy)
    send_command(tmp_path, Command("profile", 5))
    trainer.hooks[0].on_step_start(trainer)  # type: ignore[arg-type]
    assert trainer.hooks[0].profiling.requested == (0 if busy else 5)
    assert trainer.votes == (set() if busy else {"profile"})
    (answer,) = events(tmp_path)[1:]
    if busy:
        assert answer == ("control refused", 0, "a profile is already running; send it again afterwards")
    else:
        assert answer == ("control", 0, "profile 5")


def test_what_is_no_command_is_refused_and_taken_away(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    (tmp_path / "control").write_bytes(b"halt \xff" + 1000 * b"x")
    trainer.step()
    trainer.step()
    (answer,) = events(tmp_path)[1:]
    assert answer[:2] == ("control refused", 0)
    assert "is not a command; use 'save', 'stop'" in answer[2]
    assert len(answer[2]) < 400
    assert not (tmp_path / "control").exists()


def test_a_file_that_cannot_be_read_ends_no_run(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    (tmp_path / "control").mkdir()
    trainer.step()
    trainer.step()
    assert len(events(tmp_path)) == 1


def test_a_command_of_an_earlier_start_is_refused(tmp_path: Path) -> None:
    record_event(tmp_path, "started", step=0)
    send_command(tmp_path, Command("stop"))  # and the run is killed before its next step
    trainer = trainer_of(tmp_path)
    trainer.step()
    assert trainer.votes == set()
    (answer,) = events(tmp_path)[2:]
    assert answer == ("control refused", 0, "'stop' was sent before the run was restarted; send it again")


def test_only_rank_0_looks(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.world = SimpleNamespace(is_main=False)
    send_command(tmp_path, Command("save"))
    trainer.step()
    assert trainer.votes == set()
    assert (tmp_path / "control").exists()


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ({"finished": True}, ("finished", 7, "")),
        ({}, ("stopped", 7, "requested by the control file")),
        ({"stopped": "no better"}, ("stopped", 7, "no better")),
    ],
)
def test_the_end_is_recorded(tmp_path: Path, state: dict[str, Any], event: tuple[str, int, str]) -> None:
    trainer = trainer_of(tmp_path)
    vars(trainer.state).update(state | {"step": 7})
    trainer.hooks[0].on_train_end(trainer)  # type: ignore[arg-type]
    assert events(tmp_path)[1:] == [event]
