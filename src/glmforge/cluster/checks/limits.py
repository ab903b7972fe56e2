"""Limits of processes: what stops a job of many ranks that ran well with few."""

from glmforge.cluster.checks.check import Check, Context, Level
from glmforge.cluster.checks.facts import Facts
from glmforge.cluster.checks.outcome import Outcome, passed, warning


def open_files(facts: Facts, context: Context) -> Outcome:
    """The soft limit, which a process can raise up to the hard one, but torch does not."""
    least = int(context.thresholds.get("fd-limit").value)
    found, hard = facts.number("open_files"), facts.number("open_files_hard")
    threshold = f"at least {least:,}"
    if found is None or found >= least:
        return passed("unlimited" if found is None else f"{int(found):,}", threshold)
    where = "ulimit -n in the job script" if hard is None or hard >= least else "nofile in /etc/security/limits.conf"
    return warning(f"{int(found):,}", threshold, f"raise it to {least}: {where}")


CHECKS = (Check("limits.files", "open files that a process may have", Level.QUICK, "limits", judge=open_files),)
