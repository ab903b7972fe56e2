"""Checking machines: ask every one of them once for all facts, then judge; and findings for people and programs.

A machine that cannot be reached fails `reach.ssh`, and all else about it is skipped. The modules of the checks go there
with the program that runs them (`node`), so a node needs nothing but Python 3.11.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from glmforge.errors import HostError
from glmforge.files import escaped
from glmforge.runtime.hostfile import LOCAL
from glmforge_ops.health.checks import cards, data, gpu, job, machine, network, services, storage, versions
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
)
from glmforge_ops.health.checks.thresholds import refuse_unknown
from glmforge_ops.hosts.fanout import Answer, Fanout
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer, source_of

_MODULES = [module.__name__ for module in (machine, storage, network, gpu, cards, data, job, services, versions)]
"""They go to nodes, each after what it imports itself."""

_SUBJECTS = (
    "ssh", "versions", "gpu", "nvlink", "nccl", "pcie", "infiniband", "roce", "clock", "processes",
    "memory", "limits", "disk", "nvme", "shared", "checkpoints", "data", "network", "environment", "monitoring",
    "slurm", "job",
)  # fmt: skip
CHECKS.sort(key=lambda check: _SUBJECTS.index(check.name.split(".")[0]))  # as a person would look

REACH = "reach.ssh"
"""The check that every machine goes through first."""

PROGRAM = RemoteProgram((WIRE, "glmforge_ops.health.checks.check", "glmforge_ops.health.checks.node"), oldest="3.11")
"""Calls gathering functions on a node."""

_ASK_S, _THOROUGH_S, _CONNECT_S = 20.0, 660.0, 60.0
_TEXT = 2000

Progress = Callable[[float, str], None]
"""Called with the number of answers and of finished checks, and what runs now."""


def choose_checks(level: Level, only: Sequence[str] = (), skip: Sequence[str] = ()) -> list[Check]:
    """The checks of a level, or those named, by name or by subject ("disk" for all "disk.*"). Raises `ConfigError`.

    "reach" alone asks nothing else.
    """
    known = {REACH, *(check.name for check in CHECKS)}
    known |= {name.split(".")[0] for name in known}
    for name in (*only, *skip):
        refuse_unknown("unknown check", name, known)

    def means(names: Sequence[str], check: Check) -> bool:
        return check.name in names or check.name.split(".")[0] in names

    wanted = [check for check in CHECKS if (means(only, check) if only else check.level <= level)]
    return [check for check in wanted if not means(skip, check)]


@dataclass
class Findings:
    """Outcomes by check, then by host, in the order in which checks and hosts were given; and the facts they judge."""

    hosts: list[str]
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    facts: dict[str, dict[Gather, Facts | Outcome]] = field(default_factory=dict)

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
    """What `checks` say of `hosts`; `also`: facts that no check needs.

    Facts are gathered at once within `limit_s`, those of thorough checks alone one after another within minutes.
    """
    findings, report = Findings(list(hosts)), progress or (lambda done, doing: None)
    levels: dict[Gather, Level] = dict.fromkeys(also, Level.QUICK)
    for check in checks:
        if check.gather is not None:
            levels[check.gather] = min(check.level, levels.get(check.gather, check.level))
    at_once = [gather for gather, level in levels.items() if level is not Level.THOROUGH]
    num_answers = 0

    def take(answer: Answer) -> None:
        nonlocal num_answers
        num_answers += 1
        report(num_answers, f"{num_answers} of {len(hosts)} nodes have answered")

    order = PROGRAM.sent(order_for(at_once, context, limit_s))
    answers = fanout.run(hosts, PROGRAM.script, limit_s + _CONNECT_S, stdin=order, on_answer=take, hold=True)
    reach = findings.outcomes.setdefault(REACH, {})
    for host, answer in answers.items():
        reach[host], facts = _read_facts(answer, at_once)
        if facts is not None:
            findings.facts[host] = facts
    session = session_of(findings.facts, context, fanout)
    for number, check in enumerate(checks):
        report(len(hosts) + number, f"{check.name} on {len(session.hosts)} nodes")
        if session.hosts and check.gather is not None and check.gather not in at_once:
            for host, found in session.ask(check.gather, {host: {} for host in session.hosts}, _THOROUGH_S).items():
                findings.facts[host][check.gather] = found
            at_once.append(check.gather)
        outcomes = run_check(check, session) if session.hosts else {}
        findings.outcomes[check.name] = {
            host: outcomes.get(host, skipped("the node was not reached")) for host in hosts
        }
    return findings


def run_check(check: Check, session: Session) -> dict[str, Outcome]:
    """The outcome on each host of the session."""
    try:
        outcomes = check.run(session)
    except NONSENSE as error:
        outcomes = session.everywhere(unknown(f"{type(error).__name__}: {error}"))
    return {
        host: replace(outcome, **{name: text[:_TEXT] for name, text in asdict(outcome).items() if name != "status"})
        for host in session.hosts
        for outcome in [outcomes.get(host, skipped("no result"))]
    }


def session_of(facts: Mapping[str, Mapping[Gather, Facts | Outcome]], context: Context, fanout: Fanout) -> Session:
    """A session with the hosts of which there are facts."""

    def ask(function: Gather, arguments: Mapping[str, Facts], limit_s: float) -> Answers:
        order = order_for([function], context, limit_s)
        answers = fanout.run(
            list(arguments), PROGRAM.script, limit_s + _CONNECT_S, hold=True,
            stdin=lambda host: PROGRAM.sent(order | {"arguments": dict(arguments[host])}),
        )  # fmt: skip
        read = {host: _read_facts(answer, [function]) for host, answer in answers.items()}
        return {host: reach if found is None else found[function] for host, (reach, found) in read.items()}

    return Session(context, facts, ask)


def order_for(calls: Sequence[Gather], context: Context, limit_s: float) -> dict[str, Any]:
    """The order for `PROGRAM` on a node: call these functions."""
    return {
        "modules": [(name, source_of(name)) for name in _MODULES],
        "calls": [(call.__module__, call.__name__) for call in calls],
        "cluster": context.cluster.model_dump(mode="json"),
        "limit_s": limit_s,
    }


def _read_facts(answer: Answer, calls: Sequence[Gather]) -> tuple[Outcome, dict[Gather, Facts | Outcome] | None]:
    """Whether the node answered, and its facts."""
    threshold = "answers through ssh"
    if not answer.is_done:
        fix = answer.fix or "python3 of 3.11 or newer is needed there: install it"
        return failed(f"{answer.outcome}: {answer.reason}", threshold, fix), None
    try:
        said = _clean(read_answer(answer))
    except HostError as error:
        return failed(str(error), threshold, "look at what its login shell prints"), None
    found, times = said.get("answers"), said.get("times")
    times = times if isinstance(times, list) and len(times) == 2 else [None, None]
    clock = [answer.asked_at, *times, answer.asked_at + answer.seconds]
    facts: dict[Gather, Facts | Outcome] = {}
    for index, call in enumerate(calls):
        one = found[index] if isinstance(found, list) and index < len(found) else None
        if isinstance(one, dict) and isinstance(one.get("facts"), dict):
            facts[call] = one["facts"] | {"clock": clock}
        else:
            facts[call] = unknown(one.get("error") if isinstance(one, dict) else "no answer")
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


def counts_in_words(count: Callable[[Status], int]) -> str:
    """Of each status: "412 passed, 1 warnings, ..."."""
    words = {Status.PASS: "passed", Status.WARNING: "warnings", Status.FAIL: "failed", Status.SKIPPED: "skipped"}
    return ", ".join(f"{count(status)} {word}" for status, word in words.items())


@dataclass(frozen=True)
class Group:
    """Hosts of which a check says the same, except for the value; `value` holds a few of the values."""

    status: Status
    value: str
    threshold: str
    fix: str
    hosts: tuple[str, ...]


def grouped(of_hosts: Mapping[str, Outcome]) -> list[Group]:
    """What a check says of many nodes in few lines, worst first."""
    groups: dict[tuple[Status, str, str], dict[str, str]] = {}
    for host, outcome in of_hosts.items():
        groups.setdefault((outcome.status, outcome.threshold, outcome.fix), {})[host] = outcome.value
    found = []
    for (status, threshold, fix), values in groups.items():
        few = list(dict.fromkeys(values.values()))
        value = ", ".join(few[:3]) + (f" and {len(few) - 3} other values" if few[3:] else "")
        found.append(Group(status, value, threshold, fix, tuple(values)))
    return sorted(found, key=lambda group: -list(Status).index(group.status))


def as_json(findings: Findings) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "hosts": findings.hosts,
        "counts": {status.value: findings.count(status) for status in Status},
        "checks": {
            check: {host: asdict(outcome) for host, outcome in of_hosts.items()}
            for check, of_hosts in findings.outcomes.items()
        },
    }
