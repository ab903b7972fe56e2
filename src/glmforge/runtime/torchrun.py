"""A rank ends when the torchrun that started it is killed.

torchrun ends its ranks when it ends, unless it is killed. They would then wait for each other, or train beside the job
that is started in place of theirs. The kernel says at once, and to all of them, that it has gone. Ranks that `glmforge
launch` starts are ended by the program beside them (`glmforge_ops.jobs.ranks`).
"""

import os
import select
import threading
from collections.abc import Mapping

from glmforge.runtime.interrupts import say


def end_with_torchrun(environment: Mapping[str, str] = os.environ) -> None:
    """From now on this process ends within a moment of torchrun's end, with a line of the node's first rank."""
    if "TORCHELASTIC_RUN_ID" not in environment or "GLMFORGE_STEP_FILE" in environment:
        return
    parent = os.getppid()
    try:
        descriptor = os.pidfd_open(parent)
    except (AttributeError, OSError):  # no Linux, an old one, or a parent outside this container
        return
    speaks = environment.get("LOCAL_RANK", "0") == "0"
    threading.Thread(target=_end_with, args=(parent, descriptor, speaks), name="torchrun", daemon=True).start()


def _end_with(parent: int, descriptor: int, speaks: bool) -> None:
    if os.getppid() == parent:  # else it has ended before it could be watched
        select.select([descriptor], [], [])
    if speaks:
        say(f"torchrun (process {parent}) was killed, and its ranks end, too; run it again to resume")
    os._exit(1)
