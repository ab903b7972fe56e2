"""Processes that should not be there before a job: left by ended ones, stuck, or busy."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_SHOWN, _SHOWN_PIDS = 3, 50


def stale(facts: Facts, context: Context) -> Outcome:
    """No rank whose launcher is gone: it holds ports, memory and GPUs, and may still write checkpoints."""
    found = facts.each("stale")
    threshold = "no rank without its launcher"
    if not found:
        return passed("none", threshold)
    pids = " ".join(str(each.count("pid")) for each in found[:_SHOWN_PIDS])
    value = f"{len(found)} left by ended jobs: {_named(found)}"
    return failed(value, threshold, f"end them: kill {pids}")


def stuck(facts: Facts, context: Context) -> Outcome:
    """None waits in the kernel without end: for a dead file system or disk, which will hold the job's ranks, too."""
    found = facts.each("stuck")
    threshold = "none that waits in the kernel for half a second"
    if not found:
        return passed("none", threshold)
    mend = "look at /proc/PID/stack: a network file system that does not answer, or a disk; then at the kernel's log"
    return warning(f"{len(found)} stuck: {_named(found)}", threshold, mend)


def zombies(facts: Facts, context: Context) -> Outcome:
    """Few: many are a parent that does not wait, and fill the table of processes."""
    found, limit = facts.count("zombies"), context.thresholds.get("zombies").value
    if found is None:
        return skipped("processes are not told")
    threshold = f"at most {limit:g}"
    mend = "restart their parent: 'ps -eo ppid,stat | grep Z' names it"
    return passed(f"{found}", threshold) if found <= limit else warning(f"{found}", threshold, mend)


def load(facts: Facts, context: Context) -> Outcome:
    """The node is idle enough for a job."""
    found, cpus = facts.number("load", 0), facts.count("cpus")
    limit = context.thresholds.get("load-per-cpu").value
    if found is None or not cpus:
        return skipped("the load is not told")
    threshold = f"at most {limit:g} for each of {cpus} CPUs"
    mend = "look at 'top': another job, or something left over"
    return passed(f"{found:g}", threshold) if found <= limit * cpus else warning(f"{found:g}", threshold, mend)


def _named(found: list[Facts]) -> str:
    names = [f"{each.text('command')} (pid {each.count('pid')})" for each in found[:_SHOWN]]
    rest = len(found) - _SHOWN
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


CHECKS = (
    Check("processes.stale", "ranks of ended jobs", Level.QUICK, "processes", judge=stale),
    Check("processes.stuck", "processes that hang in the kernel", Level.QUICK, "processes", judge=stuck),
    Check("processes.zombies", "ended processes that nobody waits for", Level.STANDARD, "processes", judge=zombies),
    Check("processes.load", "load of the node", Level.QUICK, "processes", judge=load),
)
