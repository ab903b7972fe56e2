"""`python -P -m glmforge_ops.jobs.ranks DIRECTORY (--node N | --by STARTER)`: run by starters, not by hand."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import NamedTuple, NoReturn

from glmforge.errors import LaunchError
from glmforge_ops.jobs.ranks.agent import Agent
from glmforge_ops.jobs.ranks.assignment import Assignment
from glmforge_ops.jobs.ranks.guard import Guard
from glmforge_ops.jobs.ranks.ports import hold
from glmforge_ops.jobs.ranks.rank import FindStep, Rank
from glmforge_ops.jobs.ranks.seats import STARTERS, Seat, node_of_slurm, seat_by, seats_of_node
from glmforge_ops.jobs.ranks.steps import VARIABLE
from glmforge_ops.jobs.ranks.variables import NUMBERS, attempt_number, find_interface, rank_variables
from glmforge_ops.jobs.ranks.watch import Watch
from glmforge_ops.jobs.ranks.writer import Writer

_OPTIONS = ("--control", "--secrets", "--beats", "--torchrun")
USAGE = f"DIRECTORY (--node N | --slurm-node) [{'] ['.join(_OPTIONS)}] | DIRECTORY --by {'|'.join(STARTERS)}"
_STORAGE_LIMIT_S = 30.0


def main(arguments: list[str]) -> int:
    """The status of the rank that failed first, 128 and the signal if one ended it; 0 if none did."""
    try:
        asked = _parse(arguments)
        if "--secrets" in asked.options:
            os.environ.update(_read_secrets(sys.stdin.fileno()))
        assignment = Assignment.read(asked.directory)
        if "--torchrun" in asked.options:
            return _run_torchrun(asked, assignment)
        if asked.by in STARTERS:
            seats = [seat_by(asked.by, assignment, os.environ)]
        else:
            seats = seats_of_node(assignment, _node_of(asked, assignment))
        return _run(asked, assignment, seats, _step_finder(assignment.step_pattern))
    except LaunchError as error:
        print(f"glmforge_ops.jobs.ranks: {error}", file=sys.stderr, flush=True)
        return 1


def _run(asked: "_Asked", assignment: Assignment, seats: list[Seat], find_step: FindStep | None) -> int:
    guard = Guard()
    writer = Writer()
    interface = find_interface(assignment)
    held = hold(assignment.port) if seats[0].rank == 0 else None
    ranks = [Rank(asked.directory, assignment, seat, writer, find_step) for seat in seats]
    watch = Watch(ranks, guard, assignment.grace_s, asked.control(), beats="--beats" in asked.options)
    watch.start()
    attempt = attempt_number(asked.directory)
    for rank in ranks:
        variables = rank_variables(assignment, rank.seat, os.environ, attempt=attempt, by=asked.by, interface=interface)
        rank.start(variables | {VARIABLE: rank.steps.path} if rank.steps.path else variables, guard)
        rank.write_record()
    writer.start()
    watch.run()
    for rank in ranks:
        rank.finish()
    writer.close(_STORAGE_LIMIT_S)
    guard.close()
    if held is not None:
        os.close(held)
    return _status(ranks)


def _run_torchrun(asked: "_Asked", assignment: Assignment) -> int:
    node = _node_of(asked, assignment)
    guard, writer = Guard(), Writer()
    agent = Agent(asked.directory, assignment, node, writer)
    watch = Watch([agent], guard, assignment.grace_s, asked.control(), beats="--beats" in asked.options)
    watch.start()
    agent.start({name: value for name, value in os.environ.items() if name not in NUMBERS}, guard)
    writer.start()
    watch.run()
    agent.finish()
    writer.close(_STORAGE_LIMIT_S)
    guard.close()
    return agent.status if agent.status >= 0 else 128 - agent.status


def _status(ranks: list[Rank]) -> int:
    failed = [rank for rank in ranks if rank.status != 0]
    if not failed:
        return 0
    status = min(failed, key=lambda rank: rank.ended_at).status
    assert status is not None
    return status if status >= 0 else 128 - status


class _Asked(NamedTuple):
    """The command line. `by` is a starter whose variables tell the rank, "node" for a node's number, "slurm-node".

    Options: --control, standard input is the control channel; --secrets, its first line is variables that stand in no
    file; --beats, and its silence means that a link is cut; --torchrun, the node's ranks are started by torchrun.
    """

    directory: Path
    by: str
    node: int = 0
    options: frozenset[str] = frozenset()

    def control(self) -> int | None:
        return sys.stdin.fileno() if "--control" in self.options else None


def _read_secrets(control: int) -> dict[str, str]:
    """One line, and nothing of what follows it."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(control, 1)):
            raise LaunchError("the connection ended before it had handed over the job's variables")
        line += byte
    return json.loads(line)


def _node_of(asked: _Asked, assignment: Assignment) -> int:
    return node_of_slurm(assignment, os.environ) if asked.by == "slurm-node" else asked.node


def _parse(arguments: list[str]) -> _Asked:
    """A few forms only: a parser of the library's costs more time than all else here."""
    match arguments:
        case [directory, "--node", node, *rest] if node.isdecimal() and set(rest) <= {*_OPTIONS}:
            return _Asked(Path(directory).absolute(), "node", int(node), frozenset(rest))
        case [directory, "--slurm-node", *rest] if set(rest) <= {*_OPTIONS}:
            return _Asked(Path(directory).absolute(), "slurm-node", 0, frozenset(rest))
        case [directory, "--by", by] if by in STARTERS:
            return _Asked(Path(directory).absolute(), by)
    raise LaunchError(f"usage: python -P -m glmforge_ops.jobs.ranks {USAGE}")


def _step_finder(pattern: str | None) -> FindStep | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise LaunchError(f"step pattern {pattern!r}: not a regular expression ({error}); correct it") from None
    if compiled.groups < 1:
        raise LaunchError(f"step pattern {pattern!r}: has no group for the number, such as 'step (\\d+)'")

    def find(line: str) -> int | None:
        found = compiled.search(line)
        text = found[1] if found else None
        return int(text) if text and text.isdecimal() and len(text) < 18 else None

    return find


def _leave(status: int) -> NoReturn:
    """At once: a thread that waits for storage is not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _leave(main(sys.argv[1:]))
