"""Findings for people and for programs.

A table of a thousand nodes by forty checks is nobody's reading: a line for each check says how many nodes passed, and
below it each thing that is not as it should be is told once, with the nodes that it holds for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge_ops.health.checks.examine import Findings
from glmforge_ops.health.checks.outcome import Outcome, Status

_SHOWN_VALUES = 3


def exit_status(findings: Findings, strict: bool = False) -> int:
    """0 if nothing failed; `strict`: and nothing was skipped or is to be warned of either."""
    bad = findings.count(Status.FAIL)
    if strict:
        bad += findings.count(Status.WARNING) + findings.count(Status.SKIPPED)
    return 1 if bad else 0


def summary(findings: Findings) -> str:
    """One line: "412 passed, 1 warning, 2 failed, 30 skipped on 8 nodes"."""
    words = {Status.PASS: "passed", Status.WARNING: "warnings", Status.FAIL: "failed", Status.SKIPPED: "skipped"}
    counts = ", ".join(f"{findings.count(status)} {word}" for status, word in words.items())
    return f"{counts} on {len(findings.hosts)} node{'s' if len(findings.hosts) != 1 else ''}"


@dataclass(frozen=True)
class Group:
    """Hosts of which a check says the same, but for the value that it found on each."""

    status: Status
    values: tuple[str, ...]
    threshold: str
    mend: str
    hosts: tuple[str, ...]

    @property
    def value(self) -> str:
        """The values, a few of them if there are many."""
        values = list(dict.fromkeys(self.values))
        rest = len(values) - _SHOWN_VALUES
        return ", ".join(values[:_SHOWN_VALUES]) + (f" and {rest} other values" if rest > 0 else "")


def grouped(of_hosts: Mapping[str, Outcome]) -> list[Group]:
    """What a check says, worst first."""
    groups: dict[tuple[Status, str, str], list[tuple[str, str]]] = {}
    for host, outcome in of_hosts.items():
        groups.setdefault((outcome.status, outcome.threshold, outcome.mend), []).append((host, outcome.value))
    order = list(Status)
    return [
        Group(status, tuple(value for _, value in found), threshold, mend, tuple(host for host, _ in found))
        for (status, threshold, mend), found in sorted(groups.items(), key=lambda item: -order.index(item[0][0]))
    ]


def as_json(findings: Findings) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "hosts": findings.hosts,
        "counts": {status.value: findings.count(status) for status in Status},
        "checks": {
            check: {
                host: {
                    "status": outcome.status.value,
                    "value": outcome.value,
                    "threshold": outcome.threshold,
                    "mend": outcome.mend,
                }
                for host, outcome in of_hosts.items()
            }
            for check, of_hosts in findings.outcomes.items()
        },
    }
