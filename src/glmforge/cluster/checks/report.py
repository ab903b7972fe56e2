"""Findings for people and for programs.

A table of a thousand nodes by forty checks is nobody's reading: a line for each check says how many nodes passed, and
below it each thing that is not as it should be is told once, with the nodes that it holds for.
"""

from collections.abc import Iterable
from typing import Any

from glmforge.cluster.checks.examine import Findings
from glmforge.cluster.checks.outcome import Outcome, Status

_SHOWN_HOSTS = 8


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


def grouped(of_hosts: dict[str, Outcome]) -> dict[Outcome, list[str]]:
    """Hosts by what was found, worst first."""
    groups: dict[Outcome, list[str]] = {}
    for host, outcome in of_hosts.items():
        groups.setdefault(outcome, []).append(host)
    order = list(Status)
    return dict(sorted(groups.items(), key=lambda item: -order.index(item[0].status)))


def name_hosts(hosts: Iterable[str]) -> str:
    """A few names and how many more there are."""
    names = list(hosts)
    rest = len(names) - _SHOWN_HOSTS
    return ", ".join(names[:_SHOWN_HOSTS]) + (f" and {rest} more" if rest > 0 else "")


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
