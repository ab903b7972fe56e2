"""How far a long command is, on stderr: what a command prints to stdout may be read by another one.

On a terminal it is the last line, redrawn as work is done. Elsewhere (a Slurm log, CI) it is a plain line now and
then, by work done and not by time: each reports at least a twentieth more than the one before, so that a run of
hours has some hundred lines, the same ones every time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

MEGABYTE = 10**6

Show = Callable[[float, str], None]
"""Called with the work done and with what there is to say about it."""

_GROWTH = 1.05


@contextmanager
def work_progress(what: str, first_line: float, console: Console | None = None) -> Iterator[Show]:
    """What shows how far `what` is. Print results after it, not within: a terminal's last line is taken.

    Args:
        what: is being done, such as "encoding data/web".
        first_line: work, in any unit, before the first plain line, and at least between two of them.
        console: where to write; stderr by default.
    """
    console = console or Console(stderr=True)
    if console.is_terminal:
        with console.status(escape(what)) as status:
            yield lambda done, text: status.update(escape(f"{what}: {text}"))
        return
    next_line, last = first_line, 0.0

    def show(done: float, text: str) -> None:
        nonlocal next_line, last
        next_line, last = first_line if done < last else next_line, done  # less than before: it is something new
        if done >= next_line:
            next_line = max(done + first_line, done * _GROWTH)
            console.print(f"{what}: {text}", markup=False, highlight=False, soft_wrap=True)

    yield show
