"""Limits of processes: what stops a job of many ranks that ran well with few."""

from collections.abc import Callable

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, passed, skipped, warning

_GIB = 1 << 30


def _at_least(fact: str, limit: str, unit: float, option: str, item: str) -> Callable[[Facts, Context], Outcome]:
    """The soft limit, which a process can raise up to the hard one, but torch does not."""

    def judge(facts: Facts, context: Context) -> Outcome:
        row = context.thresholds.get(limit)
        least = row.value * unit
        found, hard, unlimited = facts.count(fact), facts.count(f"{fact}_hard"), facts.flag(f"{fact}_unlimited")
        threshold = f"at least {row.value:,g} {row.unit}"
        if unlimited:
            return passed("unlimited", threshold)
        if found is None:
            return skipped("not told")
        value = f"{found / unit:,g} {row.unit}"
        if found >= least:
            return passed(value, threshold)
        is_soft = hard is None or hard >= least
        where = f"ulimit -{option} in the job script" if is_soft else f"{item} in /etc/security/limits.conf"
        return warning(value, threshold, f"raise it to {row.value:g} {row.unit}: {where}")

    return judge


def core_files(facts: Facts, context: Context) -> Outcome:
    """A rank that crashes does not write its whole memory into a file, on storage that all share."""
    unlimited, size, pattern = facts.flag("core_file_unlimited"), facts.count("core_file"), facts.text("core_pattern")
    limit = context.thresholds.get("core-file").value
    threshold = f"at most {limit:g} GiB, or given to a program"
    if pattern is not None and pattern.startswith("|"):
        return passed("given to a program", threshold)
    if unlimited is None:
        return skipped("not told")
    if unlimited or (size is not None and size > limit * _GIB):
        value = "unlimited" if unlimited else f"{(size or 0) / _GIB:g} GiB"
        return warning(value, threshold, "ulimit -c 0 in the job script, or core in /etc/security/limits.conf")
    return passed(f"{(size or 0) / _GIB:g} GiB", threshold)


CHECKS = (
    Check(
        "limits.files",
        "open files that a process may have",
        Level.QUICK,
        "limits",
        judge=_at_least("open_files", "fd-limit", 1, "n", "nofile"),
    ),
    Check(
        "limits.processes",
        "processes that a user may have",
        Level.QUICK,
        "limits",
        judge=_at_least("processes", "process-limit", 1, "u", "nproc"),
    ),
    Check(
        "limits.locked-memory",
        "memory that a process may lock, for RDMA",
        Level.QUICK,
        "limits",
        judge=_at_least("locked_memory", "locked-memory", _GIB, "l", "memlock"),
    ),
    Check("limits.core-files", "size of core files", Level.STANDARD, "limits", judge=core_files),
)
