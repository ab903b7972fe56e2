"""Long commands that may be interrupted and run again."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

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
