"""What a check is, and how it reports. This module goes to nodes together with the modules of checks.

A module of checks holds both sides of a subject. A gathering function runs on the node, gets cluster.yaml as a
dictionary and returns plain JSON values; a check judges them here, on the machine that asks:

    def limits(cluster):                                                             # on the node
        return {"open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}

    rule("limits.files", "quick", limits, "open files of a process", "open_files", least="fd-limit", fix="ulimit -n")

`rule` judges one value of a node, or of each thing on it; `compare` one value of each node together; `act` a session in
which nodes call functions with arguments. A module is sent as it stands, so at module level it imports only the
standard library, this module, `node` and other subjects. Facts are not trusted: nonsense (`NONSENSE`) fails the check
on that node alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.config.cluster import ClusterConfig
    from glmforge.runtime.hostfile import HostLine
    from glmforge_ops.health.checks.thresholds import Thresholds

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading malformed facts raises."""

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


passed = partial(Outcome, Status.PASS)
warning = partial(Outcome, Status.WARNING)
"""A job can run, but should not have to."""
failed = partial(Outcome, Status.FAIL)
"""A job would fail, hang or be slow."""


def skipped(reason: str, fix: str = "") -> Outcome:
    """The check could not run."""
    return Outcome(Status.SKIPPED, reason, fix=fix)


def unknown(reason: object) -> Outcome:
    """The node gave no facts, or nonsense."""
    return failed(f"no usable answer: {str(reason)[:300]}", "", "run 'glmforge cluster check --local' there")


def held(is_good: bool, value: str, threshold: str, fix: str, bad: Callable[..., Outcome] = failed) -> Outcome:
    """Passed, or else `bad`."""
    return passed(value, threshold) if is_good else bad(value, threshold, fix)


def together(parts: Mapping[str, Outcome], none: str) -> Outcome:
    """One verdict over several things of a node, by name: each GPU, each port. It names all that are as bad as the
    worst; one that is unknown keeps the whole from passing.
    """
    if not parts:
        return skipped(none)
    worst = max(parts.values(), key=lambda outcome: list(Status).index(outcome.status))
    by_value: dict[str, list[str]] = {}
    for name, outcome in parts.items():
        if outcome.status is worst.status:
            by_value.setdefault(outcome.value, []).append(name)
    shown = list(by_value)
    if worst.status is not Status.PASS:
        shown = [f"{', '.join(names[:8])}{' ...' if names[8:] else ''}: {value}" for value, names in by_value.items()]
    return replace(worst, value="; ".join(shown[:4]) + (f" and {len(shown) - 4} more" if shown[4:] else ""))


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


Answers = Mapping[str, Facts | Outcome]
"""Facts by host; an outcome says why a host gave none."""


@dataclass(frozen=True)
class Session:
    """The machines that answered, their facts, and the way to ask them more.

    Attributes:
        facts: by host and gathering function.
        ask: has each host call a function of a module of checks with arguments of its own; the limit in seconds.
    """

    context: Context
    facts: Mapping[str, Mapping[Gather, Facts | Outcome]]
    ask: Callable[[Gather, Mapping[str, Facts], float], Answers]

    @property
    def hosts(self) -> list[str]:
        """In the order in which they were given."""
        return list(self.facts)

    def known(self, gather: Gather) -> Answers:
        """What a gathering function found on each host."""
        return {host: of_host.get(gather, unknown("not asked")) for host, of_host in self.facts.items()}

    def everywhere(self, outcome: Outcome) -> dict[str, Outcome]:
        """The same for all hosts."""
        return dict.fromkeys(self.facts, outcome)


def judge_each(answers: Answers, judge: Callable[[str, Facts], Outcome]) -> dict[str, Outcome]:
    """The verdict on each host; nonsense is a failure there."""
    outcomes = {}
    for host, facts in answers.items():
        try:
            outcomes[host] = facts if isinstance(facts, Outcome) else judge(host, facts)
        except NONSENSE as error:
            outcomes[host] = unknown(f"{type(error).__name__}: {error}")
    return outcomes


@dataclass(frozen=True)
class Check:
    """One property that is tested on every machine; `name` is "subject.thing"."""

    name: str
    about: str
    level: Level
    gather: Gather | None
    run: Callable[[Session], Mapping[str, Outcome]]


CHECKS: list[Check] = []
"""Those of the modules that were imported."""

Act = Callable[[Session], Mapping[str, Outcome]]
Read = Callable[[Any, Context], Any]
Together = Callable[[dict[str, Any], Context], Mapping[str, Outcome]]


def act(name: str, level: str, gather: Gather | None, about: str) -> Callable[[Act], Act]:
    """A check that asks nodes itself; with `gather` it finds those facts in the session."""

    def register(function: Act) -> Act:
        CHECKS.append(Check(name, about, Level[level.upper()], gather, function))
        return function

    return register


def rule(
    name: str, level: str, gather: Gather, about: str, read: str | Read, fix: str = "", *,
    least: str = "", most: str = "", want: Any = None, bad: Callable[[str, str, str], Outcome] = warning,
    each: Read | None = None, none: str = "", absent: str = "not reported", device: str = "",
) -> None:  # fmt: skip
    """A check that a value is at least or at most a limit, or as wanted (a value, or what gives it).

    Args:
        read: gives the value or the outcome, or names the fact; None is skipped as `absent`.
        fix, least, most: may hold fields of the facts, as in "chmod {path}".
        each: finds several things by name in the facts, each of which is judged; `none`: what to say without any.
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
        limit = (least or most).format_map(facts)
        row = context.thresholds.find(limit, kind)
        if row is None:
            return skipped(f"{_short(value)}; no limit is known for {kind}", f"set thresholds: {limit}")
        threshold = f"at {'least' if least else 'most'} {row.value:,g} {row.unit}"
        shown = "unlimited" if value >= UNLIMITED else f"{_short(value)} {row.unit}"
        is_good = value >= row.value if least else value <= row.value
        return held(is_good, shown, threshold, fix.format_map(facts), bad)

    def run(session: Session) -> dict[str, Outcome]:
        def judge_node(_: str, facts: Facts) -> Outcome:
            if each is None:
                return hold(facts, session.context)
            parts = each(facts, session.context)
            return together({key: hold(one, session.context) for key, one in parts.items()}, none)

        return judge_each(session.known(gather), judge_node)

    act(name, level, gather, about)(run)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{round(value, 3):g}"


def compare(
    name: str, level: str, gather: Gather, about: str, read: Read, judge: Together, absent: str = "not reported",
    kind: Any = str,
) -> None:  # fmt: skip
    """A check of what `read` finds on each node, a `kind`, of all together; where it finds None the node is skipped."""

    def run(session: Session) -> Mapping[str, Outcome]:
        values: dict[str, Any] = {}

        def keep(host: str, facts: Facts) -> Outcome:
            value = read(facts, session.context)
            if not isinstance(value, kind) and value is not None:
                raise TypeError(f"{value!r:.100}")
            if value is not None:
                values[host] = value
            return skipped(absent)

        return judge_each(session.known(gather), keep) | dict(judge(values, session.context))

    act(name, level, gather, about)(run)


def alike(name: str, level: str, gather: Gather, about: str, read: Read, fix: str, absent: str = "not there") -> None:
    """A check that `read` finds the same text on all nodes; {expected} in `fix` is what most of them have."""
    compare(name, level, gather, about, read, lambda values, _: equal_values(values, fix), absent)


def equal_values(values: Mapping[str, str], fix: str, expected: str | None = None) -> dict[str, Outcome]:
    """Values that should be equal: to `expected`, or to what most have. Without a majority every host fails."""
    if len(values) == 1 and expected is None:
        return {host: skipped(f"{value}, with nothing to compare it with") for host, value in values.items()}
    counts = [*Counter(values.values()).most_common(2), ("", 0), ("", 0)]
    right = expected if expected is not None else counts[0][0] if counts[0][1] > counts[1][1] else None
    threshold = "equal on all nodes" if right is None else right if expected else f"{right}, as on the others"
    bad = {value: failed(value, threshold, fix.format(expected=right or "the same")) for value in values.values()}
    return {host: passed(value, threshold) if value == right else bad[value] for host, value in values.items()}


def name_of(host: str) -> str:
    """The machine in `user@machine`."""
    return host.rpartition("@")[2]
