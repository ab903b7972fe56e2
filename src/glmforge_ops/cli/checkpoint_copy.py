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
    """Copy the newest whole checkpoint of a run to a second place, and verify it there.

    It gets its name there when it is whole; run it again to continue after an interruption. HOST needs rsync and
    sha256sum. The directory there is a run: 'glmforge checkpoint verify' checks it, and output_dir set to it resumes
    from it.

    Example:

        glmforge checkpoint copy runs/glm --to backup:/archive --keep 3 --follow
    """
    from glmforge.cli.interruptible import interruptible
    from glmforge.files import absolute
    from glmforge.observe.units import format_bytes, format_duration
    from glmforge.runtime.ssh import Ssh
    from glmforge_ops.storage.second_copy import copy_checkpoints, parse_destination

    destination = parse_destination(to)

    def report(done: "Copied") -> None:
        removed = f"; removed {', '.join(done.removed)}" if done.removed else ""
        size, duration = format_bytes(done.num_bytes), format_duration(done.seconds)
        place = f"{destination}/{absolute(run_dir).name}/checkpoints/{done.name}"
        typer.echo(f"{place}: {done.num_files} files, {size}, verified, in {duration}{removed}")

    with interruptible("what has arrived is kept, run it again"):
        copy_checkpoints(
            run_dir,
            destination,
            Ssh.of_command(ssh),
            keep=keep,
            report=report,
            every_s=interval if follow else None,
        )
