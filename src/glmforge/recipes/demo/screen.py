"""What the demo prints: a numbered heading with the elapsed time for each stage, and lines below it."""

import time

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from glmforge.observe.units import format_duration


class Screen:
    """The console, and when the demo began."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.started = time.monotonic()
        self._num_stages = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.started

    def heading(self, title: str) -> None:
        self._num_stages += 1
        self.console.print()
        self.console.rule(
            f"[bold]{self._num_stages}. {title}[/bold]  [dim]{format_duration(self.elapsed)}[/dim]", align="left"
        )

    def say(self, line: str) -> None:
        """Long ones are continued below their beginning."""
        self.console.print(Padding(Text.from_markup(line), (0, 0, 0, 2), expand=False), highlight=False)
