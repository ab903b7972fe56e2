"""Checking machines: ask every one of them once for all facts, then judge, then do what needs doing.

A machine that cannot be reached fails `reach.ssh`; what else would have been found out about it is skipped, and says
so. A check that cannot make sense of what a node says fails there, since the node is not what it should be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from glmforge.errors import HostError
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks.check import Check, Context, Session
from glmforge_ops.health.checks.facts import FactError
from glmforge_ops.health.checks.outcome import Outcome, Status, failed, passed, skipped
from glmforge_ops.health.checks.probe import PROGRAM, NodeFacts, ask_for_facts, read_facts
from glmforge_ops.hosts.fanout import Answer, Fanout

REACH = "reach.ssh"
"""The check that every machine goes through first."""

_PROBE_S, _CONNECT_S = 20.0, 60.0
_NOT_REACHED = skipped("the node was not reached")

Progress = Callable[[float, str], None]
"""Called with the number of answers and of checks that act that are done, and what is being done."""


@dataclass
class Findings:
    """Outcomes by check, then by host, in the order in which checks and hosts were given."""

    hosts: list[str]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def add(self, check: str, host: str, outcome: Outcome) -> None:
        self.outcomes.setdefault(check, {})[host] = outcome

    def count(self, status: Status) -> int:
        """Of all outcomes."""
        return sum(outcome.status is status for of_hosts in self.outcomes.values() for outcome in of_hosts.values())


def examine(
    hosts: Sequence[str],
    checks: Sequence[Check],
    context: Context,
    fanout: Fanout,
    probe_limit_s: float = _PROBE_S,
    progress: Progress | None = None,
) -> Findings:
    """What `checks` say of `hosts`."""
    findings = Findings(list(hosts))
    names = sorted({check.probe for check in checks if check.probe})
    nodes = _ask(findings, hosts, names, context, fanout, probe_limit_s, progress)
    for number, check in enumerate(checks):
        for host in hosts:
            if host not in nodes:
                findings.add(check.name, host, _NOT_REACHED)
        if check.act is not None:
            if progress is not None:
                progress(len(hosts) + number, f"{check.name} on {len(nodes)} nodes")
            outcomes = _act(check, nodes, context, fanout) if nodes else {}
        else:
            outcomes = outcomes_of(check, nodes, context)
        for host in nodes:
            findings.add(check.name, host, outcomes.get(host, skipped("nothing was found out")))
    return findings


def outcomes_of(check: Check, nodes: Mapping[str, NodeFacts], context: Context) -> Mapping[str, Outcome]:
    """What a check that judges or compares says of nodes whose facts are known."""
    if check.compare is not None:
        return _compare(check, nodes, context)
    return {host: _judge(check, node, context) for host, node in nodes.items()}


def _act(check: Check, nodes: Mapping[str, NodeFacts], context: Context, fanout: Fanout) -> Mapping[str, Outcome]:
    assert check.act is not None
    facts = {host: node.facts for host, node in nodes.items()}
    try:
        return check.act(Session(context, list(nodes), fanout, facts))
    except FactError as error:
        return {host: _no_facts(check, str(error)) for host in nodes}


def _ask(
    findings: Findings,
    hosts: Sequence[str],
    names: Sequence[str],
    context: Context,
    fanout: Fanout,
    probe_limit_s: float,
    progress: Progress | None,
) -> dict[str, NodeFacts]:
    """Facts of the hosts that could be reached; whether they could is the first finding."""
    order = ask_for_facts(names, context.cluster, probe_limit_s)
    nodes: dict[str, NodeFacts] = {}
    num_answers = 0

    def take(answer: Answer) -> None:
        nonlocal num_answers
        num_answers += 1
        if progress is not None:
            progress(num_answers, f"{num_answers} of {len(hosts)} nodes have answered")

    answers = fanout.run(hosts, PROGRAM.script, probe_limit_s + _CONNECT_S, stdin=order, on_answer=take, hold=True)
    for host, answer in answers.items():
        if not answer.is_done:
            mend = answer.mend or "python3 of 3.8 or newer must be there: install it"
            findings.add(REACH, host, failed(f"{answer.outcome}: {answer.reason}", "answers through ssh", mend))
            continue
        try:
            nodes[host] = read_facts(answer, names)
        except HostError as error:
            findings.add(REACH, host, failed(str(error), "answers through ssh", "look at what its login shell prints"))
            continue
        how = "this machine" if host in LOCAL else f"{answer.seconds:.1f} s"
        findings.add(REACH, host, passed(how, "answers through ssh"))
    return {host: nodes[host] for host in hosts if host in nodes}


def _judge(check: Check, node: NodeFacts, context: Context) -> Outcome:
    assert check.judge is not None
    if check.probe in node.errors:
        return _no_facts(check, node.errors[check.probe])
    try:
        return check.judge(node.facts[check.probe], context)
    except FactError as error:
        return _no_facts(check, str(error))


def _compare(check: Check, nodes: Mapping[str, NodeFacts], context: Context) -> Mapping[str, Outcome]:
    assert check.compare is not None
    outcomes = {
        host: _no_facts(check, node.errors[check.probe]) for host, node in nodes.items() if check.probe in node.errors
    }
    facts = {host: node.facts[check.probe] for host, node in nodes.items() if check.probe in node.facts}
    try:
        return outcomes | dict(check.compare(facts, context))
    except FactError as error:
        return outcomes | {host: _no_facts(check, str(error)) for host in facts}


def _no_facts(check: Check, reason: str) -> Outcome:
    return failed(f"nothing is known: {reason}", "", f"run 'glmforge cluster check --local --only {check.name}' there")
