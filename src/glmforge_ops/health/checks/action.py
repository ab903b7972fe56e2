"""Having several nodes do something together: each calls a function of a probe with arguments of its own."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glmforge.errors import HostError
from glmforge_ops.health.checks.check import Session
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed
from glmforge_ops.health.checks.probe import PROGRAM, ask_to_act, read_facts

_CONNECT_S = 60.0
_START_S = 2.0
_PER_HOST_S = 0.02

Told = tuple[dict[str, Facts], dict[str, Outcome]]
"""Facts by host, and the failures of hosts that told none."""


def ask_nodes(
    session: Session, probe: str, function: str, arguments: Mapping[str, Mapping[str, Any]], limit_s: float
) -> Told:
    """What `function(cluster, arguments)` of a probe returns on each host that there are arguments for."""
    order = ask_to_act(probe, function, arguments, session.context.cluster, limit_s)
    answers = session.fanout.run(list(arguments), PROGRAM.script, limit_s + _CONNECT_S, stdin=order, hold=True)
    facts: dict[str, Facts] = {}
    failures: dict[str, Outcome] = {}
    for host, answer in answers.items():
        if not answer.is_done:
            failures[host] = failed(f"{answer.outcome}: {answer.reason}", "", answer.mend or "ask it again")
            continue
        try:
            told = read_facts(answer, [probe])
        except HostError as error:
            failures[host] = failed(str(error), "", "look at what its login shell prints")
            continue
        if probe in told.facts:
            facts[host] = told.facts[probe]
        else:
            failures[host] = failed(told.errors[probe], "", "look at what hangs or fails there")
    return facts, failures


def judge_each(told: Told, judge: Callable[[str, Facts], Outcome]) -> dict[str, Outcome]:
    """The verdict on each host; one whose facts are not what they should be fails by itself."""
    outcomes = dict(told[1])
    for host, facts in told[0].items():
        try:
            outcomes[host] = judge(host, facts)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
    return outcomes


def start_together(hosts: Sequence[str]) -> dict[str, float]:
    """Arguments for what all hosts begin at the same moment, by their clocks; a wrong clock begins at once or late."""
    wait_s = _START_S + _PER_HOST_S * len(hosts) if len(hosts) > 1 else 0.0
    return {"start_at": time.time() + wait_s, "wait_s": 2 * wait_s}


def ring(hosts: Sequence[str]) -> dict[str, str]:
    """The next one of each host; empty for a single one."""
    return dict(zip(hosts, [*hosts[1:], hosts[0]], strict=True)) if len(hosts) > 1 else {}


def name_of(host: str) -> str:
    """The machine in `user@machine`."""
    return host.rpartition("@")[2]
