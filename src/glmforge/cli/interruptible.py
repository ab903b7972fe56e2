"""Long commands: that may be interrupted and run again, and that show how far they are."""

import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress

_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """On Ctrl-C, say what has become of the work, and end as a program that was interrupted."""
    try:
        yield
    except KeyboardInterrupt:  # typer ends with 130, too, but says nothing
        typer.echo(f"glmforge: interrupted; {hint}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as an error would, so that what it has begun elsewhere is ended and removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def progress_bar(*, shown: bool = True, binary: bool = False) -> "AbstractContextManager[Progress]":
    """Bars on stderr: what a command prints may be read by another one."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn(binary_units=True) if binary else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
