"""`glmforge checkpoint copy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge_ops.storage.second_copy import Copied

_FIRST_LINE = 10**10  # bytes, before which no line of progress is written


def copy(
    run_dir: Annotated[Path, typer.Argument(help="The run.")],
    to: Annotated[str, typer.Option(help="A directory, or HOST:/DIRECTORY; the run gets one of its name there.")],
    keep: Annotated[int, typer.Option(min=1, help="Copies that stay there, the newest ones.")] = 2,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every checkpoint that comes, until interrupted.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --follow.")] = 30.0,
    ssh: Annotated[str, typer.Option(help="How to call ssh.")] = "ssh",
    python: Annotated[str, typer.Option(help="Python 3.9 or newer on HOST; glmforge is not needed there.")] = "python3",
) -> None:
    """Copy the newest whole checkpoint of a run to a second place, and read it back there.

    It has its name there only when it is whole; interrupted and run again, it goes on where it was. The directory there
    is a run: 'glmforge checkpoint verify' checks it, and a run with it as output_dir goes on from it.

    Example:

        glmforge checkpoint copy runs/glm --to backup:/archive --keep 3 --follow
    """
    from glmforge.cli.interruptible import interruptible
    from glmforge.observe.units import format_bytes
    from glmforge.observe.work_progress import work_progress
    from glmforge.runtime.ssh import Ssh
    from glmforge_ops.storage.second_copy import copy_newest, parse_destination
    from glmforge_ops.storage.second_copy import follow as follow_run

    destination, reach = parse_destination(to), Ssh.of_command(ssh)

    def tell(done: "Copied") -> None:
        _tell(done, f"{destination}/{run_dir.absolute().name}/checkpoints/{done.name}")

    def copy_once(unless: str | None) -> "Copied | None":
        with work_progress(f"copying {run_dir}", _FIRST_LINE) as show:
            return copy_newest(
                run_dir,
                destination,
                reach,
                keep=keep,
                python=python,
                unless=unless,
                report=lambda done, total: show(done, f"{format_bytes(done)} of {format_bytes(total)}"),
            )

    with interruptible("what has arrived is kept, run it again"):
        if follow:
            follow_run(copy_once, interval, tell)
        elif (done := copy_once(None)) is not None:
            tell(done)


def _tell(done: "Copied", place: str) -> None:
    from glmforge.observe.units import format_bytes, format_duration

    removed = f"; removed {', '.join(done.removed)}" if done.removed else ""
    typer.echo(
        f"{place}: {done.num_files} files, {format_bytes(done.num_bytes)}, whole; {format_bytes(done.sent_bytes)} sent "
        f"in {format_duration(done.seconds)}{removed}"
    )
