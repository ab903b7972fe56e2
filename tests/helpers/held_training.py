"""`glmforge train` that waits before a step, in its job's first start, for what is to happen to it.

    PYTHON = held_python(directory)     # for a script that runs "$PYTHON" -m glmforge train CONFIG

Each rank takes `HELD_AFTER` steps and waits: until a signal asks it to give way, until it is killed, or until the file
`goes-on` is in the directory, for ranks that nothing happens to. So a run need not be long for a blow to meet it, and
the blow meets it at the same step always. The processes are prepared (`helpers.prepared`).
"""

import os
import sys
import time
from pathlib import Path

HELD_AFTER = 9
"""Steps. What there is to see of the last steps is written a little later: wait for fewer."""


def held_python(directory: Path) -> str:
    """Path of a program, written into `directory`."""
    from helpers.prepared import programs

    program = directory / "held-python"
    program.write_text(
        f'#!/bin/sh\nHELD_UNTIL="{goes_on(directory)}" exec "{programs()}/python" "{Path(__file__).resolve()}" "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def goes_on(directory: Path) -> Path:
    """The file that lets ranks go on."""
    return directory / "goes-on"


def _hold(until: Path) -> None:
    from glmforge.training.trainer import Trainer

    step, vote, votes = Trainer.step, Trainer.vote, list[str]()

    def held_step(trainer, *arguments, **options):  # type: ignore[no-untyped-def]
        while trainer.state.step == HELD_AFTER and not votes and not until.exists():
            time.sleep(0.02)  # whatever comes ends this: the outcome does not depend on when
        return step(trainer, *arguments, **options)

    def noted_vote(trainer: Trainer, name: str) -> None:
        votes.append(name)
        vote(trainer, name)

    Trainer.step, Trainer.vote = held_step, noted_vote  # type: ignore[method-assign]


def _main() -> None:
    from glmforge.__main__ import main

    assert sys.argv[1:3] == ["-m", "glmforge"], sys.argv
    del sys.argv[1:3]
    if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        _hold(Path(os.environ["HELD_UNTIL"]))
    main()


if __name__ == "__main__":
    _main()
