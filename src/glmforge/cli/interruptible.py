"""Long commands that may be interrupted and run again."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def interruptible(hint: str) -> Iterator[None]:
    """On Ctrl-C, say what has become of the work, and end as a program that was interrupted."""
    try:
        yield
    except KeyboardInterrupt:  # typer ends with 130, too, but says nothing
        typer.echo(f"glmforge: interrupted; {hint}", err=True)
        raise typer.Exit(130) from None
