"""Checking machines: ask every one of them once for all facts, then judge; and findings for people and programs.

A machine that cannot be reached fails `reach.ssh`, and all else about it is skipped. The modules of the checks go there
with the program that runs them (`node`), so a node needs nothing but Python 3.11.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from glmforge.errors import ConfigError, HostError
from glmforge.files import escaped, shown
from glmforge.observe.units import counted
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks import cards, data, gpu, hosts, job, machine, network, services, storage, versions
from glmforge_ops.health.checks.check import (
    CHECKS,
    NONSENSE,
    Answers,
    Check,
    Context,
    Facts,
    Gather,
    Level,
    Outcome,
    Session,
    Status,
    failed,
    passed,
    skipped,
    unknown,
)  # fmt: skip
from glmforge_ops.hosts.fanout import Answer, Fanout
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer, source_of

_MODULES = [module.__name__ for module in (machine, storage, network, gpu, cards, data, hosts, job, services, versions)]
"""What is sent to nodes as it is needed, each after what it imports itself."""

_SUBJECTS = (
    "hostfile", "ssh", "versions", "gpu", "nvlink", "nccl", "pcie", "infiniband", "roce", "clock", "processes",
    "memory", "limits", "disk", "nvme", "shared", "checkpoints", "data", "network", "environment", "monitoring",
    "slurm", "job",
)  # fmt: skip
CHECKS.sort(key=lambda check: _SUBJECTS.index(check.name.split(".")[0]))  # as a person would look

REACH = "reach.ssh"
"""The check that every machine goes through first."""

PROGRAM = RemoteProgram((WIRE, "glmforge_ops.health.checks.check", "glmforge_ops.health.checks.node"), oldest="3.11")
"""Calls gathering functions on a node."""

_ASK_S, _CONNECT_S = 20.0, 60.0
_TEXT = 2000
_NOT_REACHED = skipped("the node was not reached")

Progress = Callable[[float, str], None]
"""Called with the number of answers and of checks that are done, and what is being done."""


def choose_checks(level: Level, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """The checks of a level, or those named, by name or by subject ("disk" for all "disk.*"). Raises `ConfigError`.

    "reach" alone asks nothing else.
    """
    known = {REACH, *(check.name for check in CHECKS)}
    known |= {name.split(".")[0] for name in known}
    for name in (*only, *skip):
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"; did you mean '{near[0]}'?" if near else "; 'glmforge cluster check --list' lists them"
            raise ConfigError(f"there is no check '{shown(name)}'{hint}")

    def means(names: Sequence[str], check: Check) -> bool:
        return check.name in names or check.name.split(".")[0] in names

    wanted = [check for check in CHECKS if (means(only, check) if only else check.level <= level)]
    return [check for check in wanted if not means(skip, check)]


@dataclass
class Findings:
    """Outcomes by check, then by host, in the order in which checks and hosts were given; and the facts they judge."""

    hosts: list[str]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    facts: dict[str, dict[Gather, Facts | str]] = field(default_factory=dict)

    def count(self, status: Status) -> int:
        """Of all outcomes."""
        return sum(outcome.status is status for of_hosts in self.outcomes.values() for outcome in of_hosts.values())


def examine(
    hosts: Sequence[str],
    checks: Sequence[Check],
    context: Context,
    fanout: Fanout,
    limit_s: float = _ASK_S,
    progress: Progress | None = None,
    also: Sequence[Gather] = (),
) -> Findings:
    """What `checks` say of `hosts`; `also`: facts that no check needs."""
    findings = Findings(list(hosts))
    calls = list(dict.fromkeys([*also, *(check.gather for check in checks if check.gather is not None)]))
    order = PROGRAM.sent(order_for(calls, context, limit_s))
    num_answers = 0

    def take(answer: Answer) -> None:
        nonlocal num_answers
        num_answers += 1
        if progress is not None:
            progress(num_answers, f"{num_answers} of {len(hosts)} nodes have answered")

    answers = fanout.run(hosts, PROGRAM.script, limit_s + _CONNECT_S, stdin=order, on_answer=take, hold=True)
    reach = findings.outcomes.setdefault(REACH, {})
    for host, answer in answers.items():
        reach[host], facts = _read_facts(answer, calls)
        if facts is not None:
            findings.facts[host] = facts
    session = session_of(findings.facts, context, fanout)
    for number, check in enumerate(checks):
        if progress is not None:
            progress(len(hosts) + number, f"{check.name} on {len(findings.facts)} nodes")
        outcomes = run_check(check, session) if session.hosts else {}
        findings.outcomes[check.name] = {host: outcomes.get(host, _NOT_REACHED) for host in hosts}
    return findings


def run_check(check: Check, session: Session) -> dict[str, Outcome]:
    """The outcome on each host of the session."""
    try:
        outcomes = check.run(session)
    except NONSENSE as error:
        outcomes = session.everywhere(unknown(f"{type(error).__name__}: {error}"))
    return {host: _bounded(outcomes.get(host, skipped("nothing was found out"))) for host in session.hosts}


def _bounded(outcome: Outcome) -> Outcome:
    return replace(outcome, value=outcome.value[:_TEXT], threshold=outcome.threshold[:_TEXT], fix=outcome.fix[:_TEXT])


def session_of(facts: Mapping[str, Mapping[Gather, Facts | str]], context: Context, fanout: Fanout) -> Session:
    """A session with the hosts of which there are facts."""

    def ask(function: Gather, arguments: Mapping[str, Mapping[str, Any]], limit_s: float) -> Answers:
        order = order_for([function], context, limit_s)
        answers = fanout.run(
            list(arguments), PROGRAM.script, limit_s + _CONNECT_S, hold=True,
            stdin=lambda host: PROGRAM.sent(order | {"arguments": dict(arguments[host])}),
        )  # fmt: skip
        found: dict[str, Facts] = {}
        failures: dict[str, Outcome] = {}
        for host, answer in answers.items():
            reach, told = _read_facts(answer, [function])
            one = reach if told is None else told[function]
            if isinstance(one, (Outcome, str)):
                failures[host] = one if isinstance(one, Outcome) else unknown(one)
            else:
                found[host] = one
        return found, failures

    def shell(scripts: Mapping[str, str], limit_s: float) -> Mapping[str, Answer]:
        return fanout.run(list(scripts), scripts.__getitem__, limit_s)

    return Session(context, list(facts), facts, ask, shell)


def order_for(calls: Sequence[Gather], context: Context, limit_s: float) -> dict[str, Any]:
    """What `PROGRAM` is told to do on a node: call these functions, with the modules that they need."""
    needed = {name for call in calls for name in _needed(call.__module__)}
    modules = [name for name in _MODULES if name in needed]
    return {
        "modules": [(name, source_of(name)) for name in modules],
        "calls": [(call.__module__, call.__name__) for call in calls],
        "cluster": context.cluster.model_dump(mode="json"),
        "limit_s": limit_s,
    }


def _needed(module: str) -> set[str]:
    """A module of checks and those that it imports."""
    text = source_of(module)
    imported = [name for name in _MODULES if f"\nfrom {name} import " in text]
    return {module}.union(*map(_needed, imported))


def _read_facts(answer: Answer, calls: Sequence[Gather]) -> tuple[Outcome, dict[Gather, Facts | str] | None]:
    """Whether the node answered, and what; a text instead of facts says why there are none."""
    threshold = "answers through ssh"
    if not answer.is_done:
        fix = answer.fix or "python3 of 3.11 or newer is needed there: install it"
        return failed(f"{answer.outcome}: {answer.reason}", threshold, fix), None
    try:
        told = _clean(read_answer(answer))
    except HostError as error:
        return failed(str(error), threshold, "look at what its login shell prints"), None
    found, times = told.get("answers"), told.get("times")
    times = times if isinstance(times, list) and len(times) == 2 else [None, None]
    facts: dict[Gather, Facts | str] = {}
    for index, call in enumerate(calls):
        one = found[index] if isinstance(found, list) and index < len(found) else None
        if isinstance(one, dict) and isinstance(one.get("facts"), dict):
            facts[call] = one["facts"] | {"clock": [answer.asked_at, *times, answer.asked_at + answer.seconds]}
        else:
            facts[call] = str(one.get("error")) if isinstance(one, dict) else "no answer"
    return passed("this machine" if answer.host in LOCAL else f"{answer.seconds:.1f} s", threshold), facts


def _clean(value: Any) -> Any:
    """Without what would move a terminal's cursor; texts of bounded length."""
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return escaped(value[:_TEXT]) if isinstance(value, str) else value


def exit_status(findings: Findings, strict: bool = False) -> int:
    """0 if nothing failed; `strict`: and nothing was skipped or warned of either."""
    bad = (Status.FAIL, Status.WARNING, Status.SKIPPED) if strict else (Status.FAIL,)
    return 1 if any(findings.count(status) for status in bad) else 0


def summary(findings: Findings) -> str:
    """One line: "412 passed, 1 warnings, 2 failed, 30 skipped on 8 nodes"."""
    return f"{counts_in_words(findings.count)} on {counted(len(findings.hosts), 'node')}"


def counts_in_words(count: Callable[[Status], int]) -> str:
    """Of each status: "412 passed, 1 warnings, ..."."""
    words = {Status.PASS: "passed", Status.WARNING: "warnings", Status.FAIL: "failed", Status.SKIPPED: "skipped"}
    return ", ".join(f"{count(status)} {word}" for status, word in words.items())


@dataclass(frozen=True)
class Group:
    """Hosts of which a check says the same, except for the value."""

    status: Status
    values: tuple[str, ...]
    threshold: str
    fix: str
    hosts: tuple[str, ...]

    @property
    def value(self) -> str:
        """A few of the values."""
        values = list(dict.fromkeys(self.values))
        return ", ".join(values[:3]) + (f" and {len(values) - 3} other values" if len(values) > 3 else "")


def grouped(of_hosts: Mapping[str, Outcome]) -> list[Group]:
    """What a check says of many nodes in few lines, worst first."""
    groups: dict[tuple[Status, str, str], list[tuple[str, str]]] = {}
    for host, outcome in of_hosts.items():
        groups.setdefault((outcome.status, outcome.threshold, outcome.fix), []).append((host, outcome.value))
    order = list(Status)
    return [
        Group(status, tuple(value for _, value in found), threshold, fix, tuple(host for host, _ in found))
        for (status, threshold, fix), found in sorted(groups.items(), key=lambda item: -order.index(item[0][0]))
    ]


def as_json(findings: Findings) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "hosts": findings.hosts,
        "counts": {status.value: findings.count(status) for status in Status},
        "checks": {
            check: {host: outcome_json(outcome) for host, outcome in of_hosts.items()}
            for check, of_hosts in findings.outcomes.items()
        },
    }


def outcome_json(outcome: Outcome) -> dict[str, str]:
    """Status, value, threshold and fix."""
    return {
        "status": outcome.status.value, "value": outcome.value, "threshold": outcome.threshold, "fix": outcome.fix,
    }  # fmt: skip
