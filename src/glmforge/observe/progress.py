"""The line a person watches while a model trains.

On a terminal it is a rich progress bar: phase, steps, loss, tokens per second, expert balance and time left.
Where stderr is a file (a Slurm log, CI) it is one plain line at most every `plain_every` seconds, so a day of
training costs a few thousand lines. On ranks other than 0 it is nothing.

The bar is drawn from `update` and has no thread of its own: a refresh thread would contend for the
interpreter with the training step. It goes by tokens: steps grow longer as the batch grows, and a run that omits
batches has fewer of them than planned, but it always ends with its last token. If the tokens are not known beforehand
it goes by steps. The time left comes from the clock over the last updates, not from `step_seconds`, so evaluation and
checkpoints count in it.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from glmforge.observe.units import format_count, format_duration

_REFRESH_SECONDS = 0.1
_PACE_UPDATES = 50  # updates over which the pace is measured


class TrainingProgress:
    """Shows training records as they come; a context manager.

    Args:
        total_steps: optimizer steps of the whole run, as planned; None if unknown.
        total_tokens: tokens of the whole run; None if unknown.
        start_steps, start_tokens: those behind a resumed run.
        enabled: False on every rank but 0 and when output is disabled; then all methods do nothing.
        console: where to write; stderr by default. A bar if it is a terminal, plain lines if not.
        plain_every: least seconds between two plain lines; the first and the last step are always shown.
        clock: seconds, monotonic; tests give their own.
    """

    def __init__(
        self,
        total_steps: int | None,
        total_tokens: int | None,
        *,
        start_steps: int = 0,
        start_tokens: int = 0,
        enabled: bool = True,
        console: Console | None = None,
        plain_every: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        by_steps = total_tokens is None and total_steps is not None
        self._unit, self._total, start = (
            ("step", total_steps, start_steps) if by_steps else ("tokens", total_tokens, start_tokens)
        )
        self._total_steps = total_steps
        self._enabled = enabled
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._pace: deque[tuple[float, int]] = deque(maxlen=_PACE_UPDATES)
        self._last_shown = float("-inf")
        self._bar = _make_bar(self._console) if enabled and self._console.is_terminal else None
        self._show_every = plain_every if self._bar is None else _REFRESH_SECONDS
        if self._bar is not None:
            self._task = self._bar.add_task(
                "", total=self._total, completed=start, phase="", steps="", numbers="starting"
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, record: Mapping[str, Any]) -> None:
        """Show a training record: its `step` and `tokens`, and of the few numbers a line has room for what it has."""
        if not self._enabled:
            return
        now, done = self._clock(), record[self._unit]
        ended = self._total is not None and done >= self._total
        self._pace.append((now, done))
        if now - self._last_shown < self._show_every and not ended:
            return
        self._last_shown = now
        numbers = " · ".join([*_numbers(record), *self._time_left(done)])
        phase = record.get("phase", "")
        total = record["step"] if ended else self._total_steps
        steps = f"{record['step']}" if total is None else f"{record['step']}/{total}"
        if self._bar is not None:
            self._bar.update(self._task, completed=done, phase=phase, steps=steps, numbers=numbers, refresh=True)
        else:
            self._print(" · ".join(filter(None, [f"step {steps}", phase, numbers])))

    def note(self, message: str) -> None:
        """Print a line above the bar, for instance that a checkpoint was written."""
        if self._enabled:
            self._print(message)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _time_left(self, done: int) -> list[str]:
        (then, first), (now, last) = self._pace[0], self._pace[-1]
        if last == first or self._total is None or done >= self._total:
            return []
        return [f"{format_duration((now - then) / (last - first) * (self._total - done))} left"]


def _numbers(record: Mapping[str, Any]) -> list[str]:
    """The few numbers of a record that a line has room for, formatted; absent ones are skipped."""
    formats: dict[str, Callable[[float], str]] = {
        "loss": lambda x: f"loss {x:.3f}",
        "reward": lambda x: f"reward {x:.3f}",
        "pair_loss": lambda x: f"loss {x:.3f}",
        "loss_mtp": lambda x: f"mtp {x:.3f}",
        "tokens_per_second": lambda x: f"{format_count(x)} tok/s",
        "max_violation_max": lambda x: f"maxvio {x:.2f}",
    }
    return [write(record[name]) for name, write in formats.items() if name in record]


def _make_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[phase]}", style="bold", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[steps]}", markup=False),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=console,
        auto_refresh=False,
        redirect_stdout=sys.stdout.isatty(),  # prints go above the bar, unless stdout leads elsewhere
    )
