"""A run while it trains, on one screen, or as a line for each record where there is no terminal.

All is read from the run's own files, as they grow: it works from any machine that sees them, costs the run nothing, and
goes on across resumes and rollbacks, when the files are cut.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from glmforge.doctor.follow import Follower
from glmforge.doctor.run_state import RunState, State, number, planned_steps, state_of, time_of
from glmforge.errors import GlmforgeError
from glmforge.files import escaped
from glmforge.observe.metrics import Record
from glmforge.observe.run import RunDirectory
from glmforge.observe.units import format_count, format_duration

_KEPT, _PACE_LINES, _SHOWN_EVENTS = 4096, 60, 5
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_LOSSES = {"loss": "loss", "reward": "reward", "pair_loss": "loss"}
_SCORES = ("bits_per_byte", "held_out_pair_accuracy", "benchmark_score")
_QUIET = ("saved", "control", "started")
"""Events that say what else the screen shows."""
_STYLES = {State.RUNNING: "green", State.FINISHED: "green", State.SILENT: "yellow", State.FAILED: "bold red"}


class Watched:
    """What is known of a run; `update` reads what its files have gained, `new` are the records of that."""

    def __init__(self, root: Path) -> None:
        self.root, directory = root, RunDirectory(root)
        self.records: deque[Record] = deque(maxlen=_KEPT)
        self.events: deque[Record] = deque(maxlen=_KEPT)
        self.times: deque[Record] = deque(maxlen=_PACE_LINES)
        self.scores: deque[Record] = deque(maxlen=_KEPT)
        self.new: list[Record] = []
        self.state = RunState(State.WAITING)
        self.total: int | None = None
        self.stage = ""
        paths = (directory.metrics, directory.events, directory.time, directory.evaluation, directory.benchmarks)
        self._files = [
            (Follower(path), kept)
            for path, kept in zip(paths, (self.records, self.events, self.times, self.scores, self.scores), strict=True)
        ]

    def update(self) -> None:
        self.new = []
        for follower, kept in self._files:
            was_cut, records = follower.poll()
            if was_cut and kept is not self.scores:
                kept.clear()
            kept.extend(records)
            if (kept is self.records and not was_cut) or kept is self.events:
                self.new += records
        with suppress(GlmforgeError):
            self.state = state_of(self.root)
        if not self.stage:
            with suppress(GlmforgeError):
                self.total, self.stage = planned_steps(self.root)

    @property
    def last(self) -> Record:
        return self.records[-1] if self.records else {}

    @property
    def step(self) -> int:
        step = self.last.get("step")
        return step if isinstance(step, int) else 0

    @property
    def left_s(self) -> float | None:
        """By the pace of the last minutes, evaluations and saves included; by the last steps where that is unknown."""
        if self.total is None or self.state.state is not State.RUNNING or self.step >= self.total:
            return None
        marks = [(at, row["step"]) for row in self.times if isinstance(row.get("step"), int) and (at := time_of(row))]
        start = max((place for place, (one, two) in enumerate(pairwise(marks), 1) if two[1] <= one[1]), default=0)
        marks = marks[start:]  # since it last went back
        if len(marks) > 1 and marks[-1][1] > marks[0][1]:
            pace = (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])
        elif (seconds := number(self.last.get("step_seconds"))) is not None:
            pace = seconds
        else:
            return None
        return pace * (self.total - self.step)

    @property
    def scored(self) -> list[str]:
        """The last evaluation: 'few 0.330 bits/byte', in words."""
        steps = [number(record.get("step")) or 0 for record in self.scores]
        found = []
        for record, step in zip(self.scores, steps, strict=True):
            name = next((name for name in _SCORES if number(record.get(name)) is not None), None)
            if name is not None and step == max(steps):
                who = record.get("source") or record.get("benchmark") or ""
                unit = " bits/byte" if name == "bits_per_byte" else ""
                found.append(f"{escaped(str(who))} {record[name]:.3f}{unit} (step {step:,.0f})")
        return found


def line_of(record: Record) -> str:
    """A record of training, or an event, in one line."""
    if "event" in record:
        words = (record.get("event"), record.get("detail"))
        return escaped(f"step {record.get('step')} · " + ": ".join(str(word) for word in words if word))
    return " · ".join([f"step {record.get('step')}", *(f"{name} {value}" for name, value in _numbers(record))])


def watch(
    root: Path,
    console: Console,
    *,
    once: bool = False,
    keep: bool = False,
    every_s: float = 1.0,
    goes_on: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> State:
    """Show a run until it is over; the state that it is in then.

    Args:
        once: show what is known and return.
        keep: go on when it is over: it may be resumed.
        goes_on: asked then, with the same meaning; of a job that will start it again.
    """
    watched = Watched(root)
    watched.update()
    if once:
        console.print(screen(watched, console))
        return watched.state.state
    if not console.is_terminal:
        return _print_lines(watched, console, lambda: keep or goes_on(), lambda: sleep(every_s))
    with Live(screen(watched, console), console=console, auto_refresh=False, screen=False) as live:
        while not watched.state.state.is_over or keep or goes_on():
            sleep(every_s)
            watched.update()
            live.update(screen(watched, console), refresh=True)
    return watched.state.state


def _print_lines(watched: Watched, console: Console, goes_on: Callable[[], bool], wait: Callable[[], None]) -> State:
    """A line per record, from the newest one on, and when the state changes."""
    watched.new = list(watched.records)[-1:]
    state = None
    while True:
        if state != watched.state.state:
            state = watched.state.state
            _say(console, f"{escaped(watched.root.name)}: {_state_words(watched.state)}")
        for record in watched.new:
            _say(console, line_of(record))
        if state.is_over and not goes_on():
            return state
        wait()
        watched.update()


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def screen(watched: Watched, console: Console) -> Group:
    """All that is known, at the console's width."""
    state = watched.state
    name = Text.assemble((escaped(watched.root.name), "bold"), f"  {watched.stage}  ")
    head = name + Text(_state_words(state), style=_STYLES.get(state.state, ""))
    if state.state is State.WAITING and not watched.records:
        return Group(head, Text(f"waiting for {escaped(str(watched.root))} to start; Ctrl-C ends"))
    width = max(8, min(console.width, 100) - 14)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, value in _facts(watched, width, console):
        facts.add_row(label, value)
    shown = [event for event in watched.events if event.get("event") not in _QUIET][-_SHOWN_EVENTS:]
    return Group(head, facts, *(Text(line_of(event), style="dim") for event in shown))


def _facts(watched: Watched, width: int, console: Console) -> Iterator[tuple[str, Text]]:
    yield "step", Text(_progress(watched, width, console))
    name = next((name for name in _LOSSES if name in watched.last), None)
    if name is not None:
        values = [found for one in watched.records if (found := number(one.get(name))) is not None]
        blocks = _ASCII_BLOCKS if not _is_unicode(console) else _BLOCKS
        yield _LOSSES[name], Text(f"{values[-1]:.4f}" if values else "-")
        yield "", Text(sparkline(values, width, blocks), style="cyan")
    for label, value in _numbers(watched.last):
        if label not in _LOSSES.values():
            yield label, Text(value)
    if watched.scored:
        yield "evaluation", Text("\n".join(watched.scored[:4]))
    saved = next((one for one in reversed(watched.events) if one.get("event") == "saved"), None)
    if saved is not None and (at := time_of(saved)) is not None:
        yield "checkpoint", Text(f"step {saved.get('step')}, {format_duration(max(0.0, time.time() - at))} old")


def _progress(watched: Watched, width: int, console: Console) -> str:
    step, total, left = watched.step, watched.total, watched.left_s
    words = f"{step:,}" if total is None else f"{step:,}/{total:,}"
    if left is not None:
        words += f"  {format_duration(left)} left"
    if total is None:
        return words
    cells = max(4, min(30, width - len(words) - 2))
    full = round(cells * min(1.0, step / max(1, total)))
    done, rest = ("█", "░") if _is_unicode(console) else ("#", ".")
    return f"{done * full}{rest * (cells - full)}  {words}"


def _numbers(record: Record) -> Iterator[tuple[str, str]]:
    """What a record says, in words; what it has not is omitted."""
    formats: dict[str, tuple[str, Callable[[float], str]]] = {
        "loss": ("loss", lambda x: f"{x:.4f}"),
        "reward": ("reward", lambda x: f"{x:.4f}"),
        "pair_loss": ("loss", lambda x: f"{x:.4f}"),
        "lr": ("lr", lambda x: f"{x:.3g}"),
        "tokens": ("tokens", format_count),
        "tokens_per_second": ("tokens/s", format_count),
        "mfu": ("MFU", lambda x: f"{100 * x:.1f}%"),
        "grad_norm": ("grad norm", lambda x: f"{x:.3g}"),
        "max_violation_max": ("imbalance", lambda x: f"busiest expert {1 + x:.2f}x its share"),
    }
    for name, (label, write) in formats.items():
        if (value := number(record.get(name))) is not None:
            yield label, write(value) if math.isfinite(value) else str(value)


def _state_words(state: RunState) -> str:
    silent = "" if state.silent_s is None else format_duration(state.silent_s)
    if state.state is State.RUNNING:
        return "running" if state.silent_s is None or state.silent_s < 10 else f"running, last sign {silent} ago"
    if state.state is State.SILENT:
        return f"silent for {silent}" if silent else "silent"
    why = f": {escaped(state.why)}" if state.why else ""
    return f"{state.state}{why}" + (f", {silent} ago" if state.state.is_over and silent else "")


def sparkline(values: list[float], width: int, blocks: str = _BLOCKS) -> str:
    """The finite values, oldest first, as at most `width` characters: means of neighbours."""
    values = [value for value in values if math.isfinite(value)]
    if not values or width < 1:
        return ""
    cells = min(width, len(values))
    means = [fmean(values[len(values) * i // cells : len(values) * (i + 1) // cells]) for i in range(cells)]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((mean - low) * scale)] for mean in means)


def _is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
