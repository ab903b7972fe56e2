"""`glmforge checkpoint copy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glmforge_ops.storage.second_copy import Copied


def copy(
    run_dir: Annotated[Path, typer.Argument(help="The run.")],
    to: Annotated[str, typer.Option(help="A directory, or HOST:/DIRECTORY; the run gets one of its name there.")],
    keep: Annotated[int, typer.Option(min=1, help="Copies that stay there, the newest ones.")] = 2,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every checkpoint that comes, until interrupted.")
    ] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks of --follow.")] = 30.0,
    ssh: Annotated[str, typer.Option(help="How to call ssh.")] = "ssh",
) -> None:
    """Copy the newest whole checkpoint of a run to a second place, and read it back there.

    It gets its name there when it is whole; interrupted and run again, it continues. HOST needs rsync and sha256sum.
    The directory there is a run: 'glmforge checkpoint verify' checks it, and output_dir set to it resumes from it.

    Example:

        glmforge checkpoint copy runs/glm --to backup:/archive --keep 3 --follow
    """
    from glmforge.cli.interruptible import interruptible
    from glmforge.files import absolute
    from glmforge.runtime.ssh import Ssh
    from glmforge_ops.storage.second_copy import copy_newest, parse_destination
    from glmforge_ops.storage.second_copy import follow as follow_run

    destination, reach = parse_destination(to), Ssh.of_command(ssh)

    def tell(done: "Copied") -> None:
        _tell(done, f"{destination}/{absolute(run_dir).name}/checkpoints/{done.name}")

    def copy_once(unless: str | None) -> "Copied | None":
        return copy_newest(run_dir, destination, reach, keep=keep, unless=unless)

    with interruptible("what has arrived is kept, run it again"):
        if follow:
            follow_run(copy_once, interval, tell)
        elif (done := copy_once(None)) is not None:
            tell(done)


def _tell(done: "Copied", place: str) -> None:
    from glmforge.observe.units import format_bytes, format_duration

    removed = f"; removed {', '.join(done.removed)}" if done.removed else ""
    typer.echo(
        f"{place}: {done.num_files} files, {format_bytes(done.num_bytes)}, verified, in "
        f"{format_duration(done.seconds)}{removed}"
    )
