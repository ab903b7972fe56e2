"""`glmforge control`: tell a live run to save, to stop or to profile; see what its processes are doing."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console

if TYPE_CHECKING:
    from glmforge.observe.control import Name


class _Name(StrEnum):
    save = "save"
    stop = "stop"
    profile = "profile"
    stacks = "stacks"


_WHAT_HAPPENS = {
    "save": "saves a checkpoint after the next step",
    "stop": "saves after the next step and exits with status 0",
    "profile": "profiles {steps} step(s) on its first and last rank, into {profile}",
}


def control(
    run: Annotated[Path, typer.Argument(help="Directory of a running training run.")],
    command: Annotated[_Name, typer.Argument(help="Command to send.")],
    steps: Annotated[int, typer.Option(min=1, help="With profile: number of steps.")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run has accepted the command.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="With --wait: timeout in seconds.")] = 600.0,
    native: Annotated[bool, typer.Option("--native", help="With stacks: C and C++ frames too.")] = False,
) -> None:
    """Ask a live run to save, stop or profile; it checks before each step. Or print the stacks of its processes.

    Works wherever the run's directory can be written, as on a login node. 'stacks' asks nothing of the run, which may
    hang: it looks at the processes on this machine with py-spy.

    Examples:

        glmforge control runs/demo save --wait

        glmforge control runs/demo profile --steps 5

        glmforge control runs/demo stop

        glmforge control runs/demo stacks
    """
    from glmforge.observe.control import Command, num_answers, send_command
    from glmforge.observe.run import RunDirectory

    if command == "stacks":
        _print_stacks(run, native)
        return
    if native:
        raise typer.BadParameter("only 'stacks' takes it", param_hint="--native")
    if steps != 1 and command != "profile":
        raise typer.BadParameter("only 'profile' takes a number of steps", param_hint="--steps")
    answered = num_answers(run)
    send_command(run, Command(cast("Name", command.value), steps))
    what = _WHAT_HAPPENS[command].format(steps=steps, profile=RunDirectory(run).profile)
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"{run}: the run {what}", highlight=False)
    if wait:
        _wait(run, answered, timeout, console)


def _wait(run: Path, answered: int, timeout: float, console: Console) -> None:
    from glmforge.observe.control import REFUSED, ControlError, wait_for_answer

    with console.status("waiting for the run to accept it"):
        *_, answer = wait_for_answer(run, answered, timeout)
    assert answer is not None
    if answer["event"] == REFUSED:
        raise ControlError(f"{run}: the run refused: {answer['detail']}")
    console.print(f"taken after step {answer['step']:,}: {answer['detail']}", highlight=False)


def _print_stacks(run: Path, native: bool) -> None:
    from glmforge.doctor.stacks import dump_stacks
    from glmforge.files import escaped

    for each in dump_stacks(run, native=native):
        rank = "rank ?" if each.rank is None else f"rank {each.rank}"
        typer.echo(f"== {rank}, process {each.pid} ==\n{escaped(each.text, keep=chr(10))}")
