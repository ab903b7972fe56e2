"""What the commands about jobs share."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge_ops.jobs.chain.chain import Chain
    from glmforge_ops.jobs.registry import Job
    from glmforge_ops.jobs.sweep.sweep import Sweep

JobsDirOption = Annotated[Path | None, typer.Option(help="Where jobs lie.", show_default="$GLMFORGE_JOBS, or ./jobs")]
DetachOption = Annotated[bool, typer.Option("--detach", help="Without a scheduler: run on when this terminal is gone.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def find(jobs_dir: Path | None, names: list[str] | None) -> "list[Job]":
    """The jobs of these names and patterns, all of them without any."""
    from glmforge_ops.jobs import registry, submit

    root = registry.jobs_root(jobs_dir)
    chosen = registry.chosen_names(root, names) if names else registry.job_names(root)
    return registry.find_jobs(root, chosen, submit.scheduler_of)


def tell(words: str) -> None:
    """Print to stderr: stdout is for results."""
    from glmforge.files import escaped

    typer.echo(escaped(words), err=True)


def print_lines(lines: Collection[str]) -> None:
    from glmforge.cli.terminal import as_shown

    for line in lines:
        typer.echo(as_shown(line))


_WORDS = {"sweep": ("resubmit", "points"), "chain": ("resume", "stages")}
"""What goes on with one, and what it has several of."""


def go_on(jobs: "Sweep | Chain", group: str, *, detach: bool, submitted: Callable[[], object] = lambda: None) -> None:
    """Submit the jobs of a sweep or chain that have not finished, or run them from here; exit status 1 if one fails.

    Args:
        group: of commands: sweep or chain.
        submitted: is called when they are submitted, or before they are run.
    """
    name, (again, parts) = jobs.root.name, _WORDS[group]
    if jobs.is_queued:
        jobs.submit(lambda part, words: tell(f"{part}: {words}"))
        submitted()
        tell(f"Next: glmforge {group} show {name}")
        return
    submitted()
    if detach:
        return _go_on_detached([group, again], jobs.root)
    states = jobs.run(lambda part, words: tell(f"{part}: {words}"))
    finished = sum(state == "finished" for state in states.values())
    tell(f"{name}: {finished:,} of {len(states):,} {parts} have finished")
    if finished < len(states):
        tell(f"Next: glmforge {group} show {name}")
        raise typer.Exit(1)


def _go_on_detached(words: Sequence[str], root: Path) -> None:
    """Run `glmforge WORDS NAME` for the jobs of `root` in a session of its own, without this terminal."""
    import subprocess
    import sys
    from datetime import UTC, datetime

    from glmforge.files import open_regular

    log = root / f"runner-{datetime.now(UTC):%Y%m%dT%H%M%S}.log"
    command = [sys.executable, "-m", "glmforge", *words, root.name, "--jobs-dir", str(root.parent)]
    with open_regular(log, "ab") as output:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    tell(f"{root.name}: runs detached, and writes to {log}")
