"""Commands as text, and what is said of runs that cannot take one."""

from pathlib import Path

import pytest

from glmforge.observe.control import (
    REFUSED,
    TAKEN,
    Command,
    ControlError,
    num_answers,
    parse_command,
    send_command,
    take_command,
    wait_for_answer,
)
from glmforge.observe.run import RunDirectory, record_event


@pytest.fixture
def run(tmp_path: Path) -> Path:
    record_event(tmp_path, "started", step=0)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("save", Command("save")),
        (" stop\n", Command("stop")),
        ("profile", Command("profile", 1)),
        ("profile 5\n", Command("profile", 5)),
    ],
)
def test_commands(text: str, command: Command) -> None:
    assert parse_command(text) == command
    assert parse_command(str(command)) == command


@pytest.mark.parametrize("text", ["", "  \n", "sav", "save 3", "profile 0", "profile -1", "profile x", "profile 1 2"])
def test_what_is_no_command_is_told_which_there_are(text: str) -> None:
    with pytest.raises(ControlError, match=r"is not a command; use 'save', 'stop', 'profile' or 'profile STEPS'"):
        parse_command(text)


def test_a_command_is_taken_once(run: Path) -> None:
    assert take_command(run) is None
    send_command(run, Command("profile", 3))
    assert take_command(run) == "profile 3\n"
    assert take_command(run) is None
    assert sorted(path.name for path in run.iterdir()) == ["events.jsonl"]


def test_a_run_must_be_there_and_alive(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="nothing: is not a run directory, or the run has"):
        send_command(tmp_path / "nothing", Command("save"))
    for event in ("finished", "stopped", "preempted"):
        record_event(run, event, step=1200)
        record_event(run, "anomaly", step=1200)
        with pytest.raises(ControlError, match=rf"the run has ended \({event} after step 1,200\)"):
            send_command(run, Command("save"))
        record_event(run, "resumed", step=1200)
        send_command(run, Command("save"))
        assert take_command(run)


def test_one_command_at_a_time(run: Path) -> None:
    send_command(run, Command("profile", 3))
    with pytest.raises(ControlError, match="'profile 3' has not been accepted yet; wait, or delete the file"):
        send_command(run, Command("stop"))
    assert take_command(run) == "profile 3\n"


def test_waiting_for_an_answer(run: Path) -> None:
    record_event(run, TAKEN, step=3, detail="save")
    answers = wait_for_answer(run, num_answers(run), timeout_s=60, poll_s=0)
    assert next(answers) is None
    record_event(run, "anomaly", step=4)
    assert next(answers) is None
    record_event(run, REFUSED, step=4, detail="why")
    answer = next(answers)
    assert answer is not None
    assert (answer["event"], answer["detail"]) == (REFUSED, "why")
    assert list(answers) == []


def test_waiting_ends(run: Path) -> None:
    with pytest.raises(ControlError, match="timed out after 0 s; the command stays queued"):
        list(wait_for_answer(run, 0, timeout_s=0, poll_s=0))
    record_event(run, "finished", step=9)
    with pytest.raises(ControlError, match=r"the run ended \(finished after step 9\) without accepting"):
        list(wait_for_answer(run, 0, timeout_s=60, poll_s=0))


def test_the_file_is_never_half_written(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[list[str]] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        names.append(sorted(path.name for path in run.iterdir() if path == RunDirectory(run).control))
        assert self.read_text() == "stop\n"
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    send_command(run, Command("stop"))
    take_command(run)
    assert names == [[], ["control"]]
