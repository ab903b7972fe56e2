"""The control file: how a user at a terminal makes a live run save, stop or profile.

`<run>/control` holds one command. Rank 0 looks for it before each step, takes it away and answers with an event, so it
works wherever the run's directory can be written, on no port and with no signal. The file appears whole and is taken by
renaming, so neither side ever sees half of it.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from glmforge.errors import GlmforgeError
from glmforge.observe.metrics import Record
from glmforge.observe.record_files import read_jsonl
from glmforge.observe.run import RunDirectory, write_text

Name = Literal["save", "stop", "profile"]
TAKEN, REFUSED = "control", "control refused"
"""The events that answer a command."""

_STARTS = {"started", "resumed"}
_ENDS = {"finished", "stopped", "preempted"}
_MAX_CHARACTERS = 200


class ControlError(GlmforgeError):
    """An invalid command, or a run that accepts no commands."""


class Command(NamedTuple):
    """What the run is to do; `steps` only with `profile`."""

    name: Name
    steps: int = 1

    def __str__(self) -> str:
        return f"profile {self.steps}" if self.name == "profile" else self.name


def parse_command(text: str) -> Command:
    """The command in a control file. Raises `ControlError` saying which there are."""
    name, *arguments = text.split() or [""]
    with_steps = name == "profile" and len(arguments) == 1 and arguments[0].isdecimal() and int(arguments[0]) > 0
    if name not in get_args(Name) or (arguments and not with_steps):
        raise ControlError(f"{text.strip()!r} is not a command; use 'save', 'stop', 'profile' or 'profile STEPS'")
    return Command(cast(Name, name), int(arguments[0]) if arguments else 1)


def send_command(root: Path, command: Command) -> None:
    """Leave a command for the run in `root`.

    Raises:
        ControlError: there is no such run, it has ended, or an earlier command has not been taken yet.
    """
    directory = RunDirectory(root)
    if not directory.events.exists():
        raise ControlError(f"{root}: is not a run directory, or the run has not started; pass its output_dir")
    ended = how_it_ended(root)
    if ended is not None:
        raise ControlError(f"{root}: the run has ended ({ended}); start it again with 'glmforge train' first")
    if directory.control.exists():
        waiting = directory.control.read_text(encoding="utf-8", errors="replace").strip()[:_MAX_CHARACTERS]
        raise ControlError(f"{directory.control}: {waiting!r} has not been accepted yet; wait, or delete the file")
    write_text(directory.control, f"{command}\n")


def take_command(root: Path) -> str | None:
    """Remove the control file and return its text, or None. Costs one look at the directory without one."""
    path = RunDirectory(root).control
    try:
        path.stat()
    except FileNotFoundError:
        return None
    taken = path.with_name(".control.taken")
    path.replace(taken)
    try:
        return taken.read_text(encoding="utf-8", errors="replace")[:_MAX_CHARACTERS]
    finally:
        with suppress(OSError):
            taken.unlink()


def how_it_ended(root: Path) -> str | None:
    """The event with which a run ended in order, None while it runs (or after it was killed)."""
    for event in reversed(_events(root)):
        if event["event"] in _STARTS:
            return None
        if event["event"] in _ENDS:
            return f"{event['event']} after step {event['step']:,}"
    return None


def num_answers(root: Path) -> int:
    """How many commands the run has answered so far."""
    return len(_answers(root))


def wait_for_answer(root: Path, after: int, timeout_s: float, poll_s: float = 0.5) -> Iterator[Record | None]:
    """Look every `poll_s` seconds for the answer number `after` + 1: gives None for each vain look, then the event.

    Raises:
        ControlError: none came within `timeout_s` seconds, or the run ended without one.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answers = _answers(root)[after:]
        if answers:
            yield answers[0]
            return
        ended = how_it_ended(root)
        if ended is not None:
            raise ControlError(f"{root}: the run ended ({ended}) without accepting the command")
        if time.monotonic() >= deadline:
            raise ControlError(
                f"{root}: timed out after {timeout_s:g} s; the command stays queued for the next step. Is the run "
                "alive? Delete the file 'control' to cancel it"
            )
        yield None
        time.sleep(poll_s)


def _answers(root: Path) -> list[Record]:
    return [event for event in _events(root) if event["event"] in (TAKEN, REFUSED)]


def _events(root: Path) -> list[Record]:
    path = RunDirectory(root).events
    return read_jsonl(path) if path.exists() else []
