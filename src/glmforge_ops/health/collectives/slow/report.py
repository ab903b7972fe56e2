"""What the search found, in words and as JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from glmforge.files import escaped
from glmforge_ops.health.collectives.settings import SlowSettings
from glmforge_ops.health.collectives.slow.drive import RoundDone, Unit
from glmforge_ops.health.collectives.slow.search import Findings

_NAMED = 8
"""Hosts of one side of a path that are named, and findings of a kind that are listed."""


def line_of_round(done: RoundDone) -> str:
    """What a round gave, in one line."""
    measured = done.measured.bandwidth[np.isfinite(done.measured.bandwidth)]
    slowest = f", slowest {measured.min():.4g} GB/s" if measured.size else ""
    missing = len(done.measured.bandwidth) - measured.size
    lost = f", {len(done.measured.lost)} hosts did not answer" if done.measured.lost else ""
    unfinished = f", {missing:,} not finished" if missing else ""
    return (
        f"round {done.number} of {done.expected}: {done.chosen.name}: {len(done.chosen.groups):,} groups, "
        f"{measured.size:,} exchanges{slowest}{unfinished}{lost}; {done.seconds:.1f} s"
    )


def lines_of(units: Sequence[Unit], findings: Findings, settings: SlowSettings) -> list[str]:
    """The findings, the gravest first, each with what to do; then what they rest on."""
    lines = [
        f"lost: {_name(units, (host,))} did not answer: see whether it runs and can be reached"
        for host in findings.lost
    ]
    of_others = f"others reach {findings.reference:.4g}"
    lines += [
        f"slow: {_name(units, (one.host,))} reached {one.bandwidth:.4g} GB/s with its best partner, {of_others}: take "
        "it out of the job, look at its adapter and cable"
        for one in findings.hosts
    ]
    for path in findings.paths:
        between = f"between {_name(units, path.first)} and {_name(units, path.second)}"
        again = "" if path.confirmed or path.bandwidth == 0 else " (measured once)"
        what = "carries nothing" if path.bandwidth == 0 else f"carries {path.bandwidth:.4g} GB/s"
        lines.append(
            f"slow: the path {between} {what}{again}, {of_others}; its ends are fast with other hosts: look at the "
            "switches and routes between them"
        )
    lines += [
        f"not measured: the path between {_name(units, path.first)} and {_name(units, path.second)}: the hosts "
        "could not connect, or the measurement was never finished: see whether each reaches the other"
        for path in findings.unknown
    ]
    if len(lines) > 4 * _NAMED:
        lines = [*lines[: 4 * _NAMED], f"and {len(lines) - 4 * _NAMED:,} more (--json has all)"]
    if not lines:
        lines = [
            f"nothing is slow: every pair reached {settings.slow_below:g} of {findings.reference:.4g} GB/s or more"
        ]
    return [*lines, *_what_it_rests_on(len(units), findings, settings)]


def findings_as_json(units: Sequence[Unit], findings: Findings) -> dict[str, Any]:
    """Everything, with names in place of positions."""
    return {
        "hosts": [unit.name for unit in units],
        "lost": [units[host].name for host in findings.lost],
        "slow_hosts": [{"host": units[one.host].name, "gb_per_s": one.bandwidth} for one in findings.hosts],
        "slow_paths": [
            {
                "between": [units[host].name for host in path.first],
                "and": [units[host].name for host in path.second],
                "gb_per_s": path.bandwidth,
                "confirmed": path.confirmed,
            }
            for path in findings.paths
        ],
        "not_measured": [
            {"between": [units[host].name for host in path.first], "and": [units[host].name for host in path.second]}
            for path in findings.unknown
        ],
        "reference_gb_per_s": None if np.isnan(findings.reference) else findings.reference,
        "rounds": findings.num_rounds,
        "exchanges": findings.num_exchanges,
        "paths_measured": findings.num_measured,
        "paths": findings.num_paths,
    }


def _what_it_rests_on(num_hosts: int, findings: Findings, settings: SlowSettings) -> list[str]:
    lines = [
        f"{findings.num_measured:,} of {findings.num_paths:,} paths between hosts measured in {findings.num_rounds} "
        f"rounds, {findings.num_exchanges:,} exchanges one after the other"
    ]
    if findings.num_measured < findings.num_paths and settings.max_partners is None:
        lines.append("what was not measured is not known: run again without the hosts named above")
    if num_hosts == 2 and settings.expected_gbs is None:
        lines.append("two hosts have one path, and nothing to compare it with: give --expect, or more hosts")
    return lines


def _name(units: Sequence[Unit], hosts: Sequence[int]) -> str:
    names = [escaped(units[host].name) for host in hosts[:_NAMED]]
    return ", ".join(names) + (f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else "")
