"""What the commands about several jobs share, sweeps and chains."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from glmforge_ops.jobs.state.job_state import JobState

JobsDirOption = Annotated[Path | None, typer.Option(help="Where jobs lie.", show_default="$GLMFORGE_JOBS, or ./jobs")]
DetachOption = Annotated[bool, typer.Option("--detach", help="Without a scheduler: run on when this terminal is gone.")]


def tell(words: str) -> None:
    """On stderr: stdout is for results."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(escape(words))


def go_on_detached(words: Sequence[str], root: Path) -> None:
    """Run `glmforge WORDS NAME` for the jobs of `root` without this terminal."""
    from glmforge_ops.jobs.submit.detached import run_detached

    log = run_detached([*words, root.name, "--jobs-dir", str(root.parent)], root)
    tell(f"{root.name}: runs detached, and tells of it in {log}")


def tell_how_many_finished(group: str, name: str, parts: str, states: "Collection[JobState]", total: int) -> None:
    """Ends with status 1 unless all have. `group` is the group of commands, `parts` what it has several of."""
    from glmforge_ops.jobs.state.job_state import JobState

    finished = sum(state is JobState.FINISHED for state in states)
    tell(f"{name}: {finished:,} of {total:,} {parts} have finished")
    if finished < total:
        tell(f"Next: glmforge {group} show {name}")
        raise typer.Exit(1)
