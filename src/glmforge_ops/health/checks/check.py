"""What a check is and what it says. This module goes to nodes together with the modules of checks.

A module of checks holds both sides of a subject. A gathering function runs on the node, gets cluster.yaml as a
dictionary and returns plain JSON values; a check judges them here, on the machine that asks:

    def limits(cluster):                                                             # on the node
        return {"open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}

    rule("limits.files", "quick", limits, "open files of a process", "open_files", least="fd-limit", fix="ulimit -n")

`rule` holds one value of a node, or of each thing on it, against a limit; `judge` sees the facts of one node, `compare`
one value of each node together, `act` a session in which nodes call functions with arguments. A module is sent as it
stands, so at module level it imports only the standard library, this module, `node` and other subjects. Facts are not
trusted: nonsense (`NONSENSE`) fails the check on that node alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.config.cluster import ClusterConfig
    from glmforge.runtime.hostfile import HostLine
    from glmforge_ops.health.checks.thresholds import Threshold, Thresholds
    from glmforge_ops.hosts.fanout import Answer

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading facts raises that are not what they should be."""

UNLIMITED = 1e18
"""As a value of a node."""

Facts = Mapping[str, Any]
Gather = Callable[..., dict[str, Any]]


class Level(IntEnum):
    """How long a node may be kept busy: before every job (seconds), manually (a minute), after a repair (minutes)."""

    QUICK = 0
    STANDARD = 1
    THOROUGH = 2


class Status(StrEnum):
    """From best to worst; a skipped check never counts as passed."""

    PASS = "pass"
    SKIPPED = "skipped"
    WARNING = "warning"
    FAIL = "fail"


@dataclass(frozen=True)
class Outcome:
    """The verdict of one check on one machine.

    Attributes:
        value: what was found, with its unit.
        threshold: what it was compared with; empty if nothing.
        fix: what to do about it; for a skipped check, what would let it run.
    """

    status: Status
    value: str
    threshold: str = ""
    fix: str = ""


def passed(value: str, threshold: str = "") -> Outcome:
    """As it should be."""
    return Outcome(Status.PASS, value, threshold)


def warning(value: str, threshold: str, fix: str) -> Outcome:
    """A job can run, but should not have to."""
    return Outcome(Status.WARNING, value, threshold, fix)


def failed(value: str, threshold: str, fix: str) -> Outcome:
    """A job would fail, hang or be slow."""
    return Outcome(Status.FAIL, value, threshold, fix)


def skipped(reason: str, fix: str = "") -> Outcome:
    """Nothing was found out."""
    return Outcome(Status.SKIPPED, reason, fix=fix)


def unknown(reason: object) -> Outcome:
    """The node gave no facts, or nonsense."""
    return failed(f"nothing is known: {str(reason)[:300]}", "", "run 'glmforge cluster check --local' there")


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of several; the first of equals."""
    order = list(Status)
    return max(outcomes, key=lambda outcome: order.index(outcome.status))


def together(parts: Mapping[str, Outcome], none: str) -> Outcome:
    """One verdict over several things of a node, by name: each GPU, each port. All that are as bad as the worst are
    named; what is not known keeps the whole from passing.
    """
    if not parts:
        return skipped(none)
    bad = worst(parts.values())
    by_value: dict[str, list[str]] = {}
    for name, outcome in parts.items():
        if outcome.status is bad.status:
            by_value.setdefault(outcome.value, []).append(name)
    told = list(by_value)
    if bad.status is not Status.PASS:
        told = [f"{', '.join(names[:8])}{' ...' if names[8:] else ''}: {value}" for value, names in by_value.items()]
    return replace(bad, value="; ".join(told[:4]) + (f" and {len(told) - 4} more" if told[4:] else ""))


@dataclass(frozen=True)
class Context:
    """What facts are held against."""

    cluster: ClusterConfig
    thresholds: Thresholds
    machines: Mapping[str, HostLine] = field(default_factory=dict)

    def limit(self, name: str) -> float:
        """The value of a threshold that holds for all devices."""
        row = self.thresholds.find(name)
        assert row is not None, f"{name} has no row for all devices"
        return row.value

    def find(self, name: str, device: str) -> Threshold | None:
        """The threshold for a device or link; None if nothing is known of it."""
        return self.thresholds.find(name, device)


Answers = tuple[dict[str, Facts], dict[str, Outcome]]
"""Facts by host, and the failures of hosts that gave none."""


@dataclass(frozen=True)
class Session:
    """The machines that answered, what they said, and the way to ask them more.

    Attributes:
        facts: by host and gathering function; a text says why there are none.
        ask: has each host call a function of a module of checks with arguments of its own; the limit in seconds.
        shell: runs a script on each host.
    """

    context: Context
    hosts: list[str]
    facts: Mapping[str, Mapping[Gather, Facts | str]]
    ask: Callable[[Gather, Mapping[str, Mapping[str, Any]], float], Answers]
    shell: Callable[[Mapping[str, str], float], Mapping[str, Answer]]

    def known(self, gather: Gather) -> Answers:
        """What a gathering function found on each host."""
        found = {host: of_host.get(gather, "no answer") for host, of_host in self.facts.items()}
        facts = {host: one for host, one in found.items() if not isinstance(one, str)}
        return facts, {host: unknown(one) for host, one in found.items() if isinstance(one, str)}

    def everywhere(self, outcome: Outcome) -> dict[str, Outcome]:
        """The same for all hosts."""
        return dict.fromkeys(self.hosts, outcome)


def judge_each(answers: Answers, judge: Callable[[str, Facts], Outcome]) -> dict[str, Outcome]:
    """The verdict on each host; nonsense is a failure there."""
    outcomes = dict(answers[1])
    for host, facts in answers[0].items():
        try:
            outcomes[host] = judge(host, facts)
        except NONSENSE as error:
            outcomes[host] = unknown(f"{type(error).__name__}: {error}")
    return outcomes


@dataclass(frozen=True)
class Check:
    """One thing that is found out about every machine; `name` is "subject.thing"."""

    name: str
    about: str
    level: Level
    gather: Gather | None
    run: Callable[[Session], Mapping[str, Outcome]]


CHECKS: list[Check] = []
"""Those of the modules that were imported."""

Act = Callable[[Session], Mapping[str, Outcome]]
Judge = Callable[[Any, Context], Outcome]
Read = Callable[[Any, Context], Any]
Together = Callable[[dict[str, Any], Context], Mapping[str, Outcome]]


def act(name: str, level: str, gather: Gather | None, about: str) -> Callable[[Act], Act]:
    """A check that asks nodes itself; with `gather` it finds those facts in the session."""

    def register(function: Act) -> Act:
        CHECKS.append(Check(name, about, Level[level.upper()], gather, function))
        return function

    return register


def judge(
    name: str, level: str, gather: Gather, about: str, each: Read | None = None, none: str = ""
) -> Callable[[Judge], Judge]:
    """A check of one node's facts; or of each of the things by name that `each` finds in them."""

    def register(function: Judge) -> Judge:
        def judge_node(facts: Facts, context: Context) -> Outcome:
            if each is None:
                return function(facts, context)
            return together({key: function(one, context) for key, one in each(facts, context).items()}, none)

        act(name, level, gather, about)(
            lambda session: judge_each(session.known(gather), lambda _, facts: judge_node(facts, session.context))
        )
        return function

    return register


def rule(
    name: str, level: str, gather: Gather, about: str, read: str | Read, fix: str, *,
    least: str = "", most: str = "", want: Any = None, bad: Callable[[str, str, str], Outcome] = warning,
    each: Read | None = None, none: str = "", absent: str = "not reported", device: str = "",
) -> None:  # fmt: skip
    """A check that a value is at least or at most a limit, or as wanted (a value, or what gives it).

    Args:
        read: gives the value, or names the fact; None is skipped as `absent`.
        fix, least, most: may hold fields of the facts, as in "chmod {path}".
        device: names the fact by which the limit's row is found.
    """

    def hold(facts: Facts, context: Context) -> Outcome:
        value = facts[read] if isinstance(read, str) else read(facts, context)
        if isinstance(value, Outcome) or value is None:
            return skipped(absent) if value is None else value
        if want is not None:
            wanted = want(facts, context) if callable(want) else want
            return passed(f"{value}") if value == wanted else bad(f"{value}", f"{wanted}", fix.format_map(facts))
        kind = f"{facts[device]}" if device else ""
        row = context.find((least or most).format_map(facts), kind)
        if row is None:
            return skipped(f"{_short(value)}; no limit is known for {kind}", f"set thresholds: {least or most}")
        threshold = f"at {'least' if least else 'most'} {row.value:,g} {row.unit}"
        shown = "unlimited" if value >= UNLIMITED else f"{_short(value)} {row.unit}"
        is_good = value >= row.value if least else value <= row.value
        return passed(shown, threshold) if is_good else bad(shown, threshold, fix.format_map(facts))

    judge(name, level, gather, about, each, none)(hold)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{round(value, 3):g}"


def compare(
    name: str, level: str, gather: Gather, about: str, read: Read, absent: str = "not reported", kind: Any = str
) -> Callable[[Together], Together]:
    """A check of what `read` finds on each node, a `kind`, of all together; where it finds None the node is skipped."""

    def register(function: Together) -> Together:
        def run(session: Session) -> Mapping[str, Outcome]:
            values: dict[str, Any] = {}

            def keep(host: str, facts: Facts) -> Outcome:
                value = read(facts, session.context)
                if not isinstance(value, kind) and value is not None:
                    raise TypeError(f"{value!r:.100}")
                if value is not None:
                    values[host] = value
                return skipped(absent)

            return judge_each(session.known(gather), keep) | dict(function(values, session.context))

        act(name, level, gather, about)(run)
        return function

    return register


def alike(name: str, level: str, gather: Gather, about: str, read: Read, fix: str, absent: str = "not there") -> None:
    """A check that `read` finds the same text on all nodes; {expected} in `fix` is what most of them have."""
    compare(name, level, gather, about, read, absent)(lambda values, _: equal_values(values, fix))


def equal_values(values: Mapping[str, str], fix: str, expected: str | None = None) -> dict[str, Outcome]:
    """Values that should be equal: to `expected`, or to what most have. Without a majority every host fails."""
    if len(values) == 1 and expected is None:
        return {host: skipped(f"{value}, with nothing to compare it with") for host, value in values.items()}
    counts = [*Counter(values.values()).most_common(2), ("", 0), ("", 0)]
    right = expected if expected is not None else counts[0][0] if counts[0][1] > counts[1][1] else None
    threshold = "equal on all nodes" if right is None else right if expected else f"{right}, as on the others"
    bad = {value: failed(value, threshold, fix.format(expected=right or "the same")) for value in values.values()}
    return {host: passed(value, threshold) if value == right else bad[value] for host, value in values.items()}


def usual_size(values: Mapping[str, float], share: float, unit: str, fix: str) -> dict[str, Outcome]:
    """Sizes in `unit` that should be at least `share` of the median."""
    usual = median(values.values()) if values else 0.0
    if len(values) == 1:
        return {host: skipped(f"{usual:,.0f} {unit}, with nothing to compare it with") for host in values}
    threshold = f"{usual:,.0f} {unit}, as most nodes"
    shown = {host: f"{size:,.0f} {unit}" for host, size in values.items()}
    return {host: passed(shown[host], threshold) if size >= share * usual else failed(shown[host], threshold, fix)
            for host, size in values.items()}  # fmt: skip


def ring(hosts: Sequence[str]) -> dict[str, str]:
    """The next one of each host; empty for a single one."""
    return dict(zip(hosts, [*hosts[1:], hosts[0]], strict=True)) if len(hosts) > 1 else {}


def name_of(host: str) -> str:
    """The machine in `user@machine`."""
    return host.rpartition("@")[2]
