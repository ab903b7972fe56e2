"""Starters in tests on other hosts: a program that does with a starter what the supervisor does, steered by files."""

import json
import sys
from pathlib import Path
from typing import Any

from glmforge.observe.job_records import AttemptDirectory
from helpers.ranks import PATIENCE_S

_PROGRAM = """
import importlib, json, signal, sys, time
from pathlib import Path
from glmforge.runtime.ssh import Ssh
from glmforge.observe.job_records import AttemptDirectory
from glmforge_ops.jobs.ranks.assignment import Assignment

given = json.loads(Path(sys.argv[1]).read_text())
starter, ssh = given.pop("starter"), given.pop("ssh")
room = "srun" if starter == "srun" else "nodes"
kind = getattr(importlib.import_module(f"glmforge_ops.jobs.starters.{room}"), f"{starter.title()}Starter")
starter = kind() if ssh is None else kind(Ssh.of_command(ssh))
attempt = AttemptDirectory(Path(given.pop("directory")))
running = starter.start(attempt, Assignment(**given))
asked = set()
while (status := running.poll()) is None:
    for name in ("USR1", "INT", "TERM", "KILL"):
        if (attempt.root / f"ask-{name}").exists() and name not in asked:
            asked.add(name)
            running.kill() if name == "KILL" else running.signal(signal.Signals["SIG" + name])
    time.sleep(0.05)
(attempt.root / "status").write_text(str(status))
"""


def starting_command(
    attempt: AttemptDirectory,
    starter: str,
    command: list[str],
    nodes: list[str],
    *,
    ssh: str | None = None,
    **changes: Any,
) -> list[str]:
    """The command that starts two ranks of `command` on each of `nodes`, and waits for their end.

    It writes their status into the attempt's `status`; `ask` tells it to signal or kill them.
    """
    given = {
        "directory": str(attempt.root),
        "starter": starter,
        "ssh": ssh,
        "nodes": nodes,
        "ranks_per_node": 2,
        "command": command,
        "cwd": "/",
        "address": "127.0.0.1",
        "port": 77,
        "cpus_per_task": 1,
        "grace_s": PATIENCE_S,
    }
    program, orders = attempt.root / "supervisor.py", attempt.root / "given.json"
    program.write_text(_PROGRAM)
    orders.write_text(json.dumps(given | changes))
    return [sys.executable, str(program), str(orders)]


def ask(attempt: AttemptDirectory, name: str) -> None:
    """Have the ranks get a signal ("USR1", "INT", "TERM"), or be killed ("KILL")."""
    (attempt.root / f"ask-{name}").touch()


def said(attempt: AttemptDirectory) -> str:
    """What starters have said, for a test's failure."""
    return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(Path(attempt.root).glob("*.log")))
