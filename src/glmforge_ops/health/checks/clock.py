"""Clocks: the same time on all nodes, and kept by a time server.

A node is asked through ssh, which takes a while; its clock was read in between. So its offset from ours is known to lie
between two bounds, and only bounds that exclude agreement are held against it.
"""

from collections.abc import Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts, Times
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_OURS = (0.0, 0.0)


def skew(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Off from what most nodes agree on: ours may be the one that is wrong."""
    limit = context.thresholds.get("clock-skew").value
    threshold = f"within {limit:g} s of most nodes"
    bounds = {host: _bounds(facts.times) for host, facts in nodes.items() if facts.times is not None}
    outcomes = {host: skipped("the node did not tell its time") for host in nodes if host not in bounds}
    if not bounds:
        return outcomes
    agreed = _agreed([*bounds.values(), _OURS])
    mend = "start chrony or systemd-timesyncd there ('chronyc makestep' sets the clock at once)"
    for host, (low, high) in bounds.items():
        if low > high:
            outcomes[host] = failed("its clock was set while it was asked", threshold, mend)
            continue
        off = max(low - agreed, agreed - high, 0.0)
        sign = "ahead" if low > agreed else "behind"
        if off > limit:
            outcomes[host] = failed(f"at least {off:,.1f} s {sign}" if off < 1e10 else "another age", threshold, mend)
        elif (most := max(high - agreed, agreed - low)) > limit:
            outcomes[host] = skipped(
                f"asking took too long to tell more than within {most:.1f} s", "check it when idle"
            )
        else:
            outcomes[host] = passed(f"within {most:.1f} s", threshold)
    return outcomes


def _bounds(times: Times) -> tuple[float, float]:
    """Of the node's clock minus ours: it started after we asked, and ended before we had the answer."""
    return times.ended - times.answered, times.started - times.asked


def _agreed(bounds: list[tuple[float, float]]) -> float:
    """The offset that lies within the bounds of most machines; the one nearest to none at all among equals."""
    candidates = [edge for pair in bounds for edge in pair]
    return max(candidates, key=lambda edge: (sum(low <= edge <= high for low, high in bounds), -abs(edge)))


def synchronised(facts: Facts, context: Context) -> Outcome:
    """By any program."""
    kept, by, offset = facts.flag("synchronised"), facts.text("by"), facts.number("offset", 0)
    limit = context.thresholds.get("clock-offset").value
    threshold = f"kept by a time server, within {limit:g} s"
    if kept is None:
        return skipped("the node does not tell")
    if not kept:
        return warning(
            f"not kept, says {by}", threshold, "start chrony or systemd-timesyncd, with servers it can reach"
        )
    if offset is not None and offset > limit:
        return warning(f"{offset:g} s off, says {by}", threshold, "'chronyc makestep'; look at 'chronyc sources'")
    return passed(f"kept, says {by}", threshold)


CHECKS = (
    Check("clock.skew", "the same time on all nodes", Level.QUICK, "clock", compare=skew),
    Check("clock.synchronised", "clocks kept by a time server", Level.STANDARD, "clock", judge=synchronised),
)
