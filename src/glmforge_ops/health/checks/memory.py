"""Memory: as much as on the others, free, without errors; and `/dev/shm`, through which ranks of a node talk."""

from collections.abc import Callable, Mapping
from statistics import median

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_GIB = 1 << 30


def total(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Not less than most have: a module that the BIOS switched off is missed by nobody else."""
    sizes: dict[str, int] = {}
    outcomes: dict[str, Outcome] = {}
    for host, facts in nodes.items():
        try:
            found = facts.count("total")
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
            continue
        if found is None:
            outcomes[host] = skipped("the size is not told")
        else:
            sizes[host] = found
    usual = median(sizes.values()) if sizes else 0
    least = usual * context.thresholds.get("memory-share").value
    threshold = f"{usual / _GIB:.0f} GiB, as most nodes"
    mend = "look at 'dmidecode -t memory' and at the BIOS for a module that is missing or switched off"
    for host, size in sizes.items():
        value = f"{size / _GIB:.0f} GiB"
        if len(sizes) == 1:
            outcomes[host] = skipped(f"{value}, with nothing to compare it with")
            continue
        outcomes[host] = passed(value, threshold) if size >= least else failed(value, threshold, mend)
    return outcomes


def available(facts: Facts, context: Context) -> Outcome:
    """Most of it is free."""
    found, size = facts.count("available"), facts.count("total")
    if found is None or not size:
        return skipped("not told")
    least = context.thresholds.get("memory-available").value
    threshold, value = f"at least {least:.0%} available", f"{found / size:.0%} of {size / _GIB:.0f} GiB"
    mend = "look at 'ps aux --sort=-rss' and at what lies in /dev/shm: left by an ended job"
    return passed(value, threshold) if found >= least * size else warning(value, threshold, mend)


def swap(facts: Facts, context: Context) -> Outcome:
    """Next to nothing was swapped out."""
    used, limit = facts.count("swap_used"), context.thresholds.get("swap-used").value
    if used is None:
        return skipped("not told")
    value, threshold = f"{used / _GIB:.1f} GiB", f"at most {limit:g} GiB"
    mend = "'swapoff -a && swapon -a' brings it back; vm.swappiness=10 or less keeps it"
    return passed(value, threshold) if used <= limit * _GIB else warning(value, threshold, mend)


def hugepages(facts: Facts, context: Context) -> Outcome:
    """Little is set aside for huge pages, which torch does not use."""
    reserved, size = facts.count("hugepages"), facts.count("total")
    if reserved is None or not size:
        return skipped("not told")
    most = context.thresholds.get("hugepages-share").value
    value, threshold = f"{reserved / _GIB:.1f} GiB", f"at most {most:.0%} of the memory"
    mend = "set vm.nr_hugepages to 0, unless something on the node needs them"
    return passed(value, threshold) if reserved <= most * size else warning(value, threshold, mend)


def controllers(facts: Facts, context: Context) -> Outcome:
    """No uncorrected error since boot, and not many that were corrected."""
    if not facts.count("controllers"):
        return skipped("no memory controller reports errors (EDAC)")
    uncorrected, corrected = facts.count("uncorrected") or 0, facts.count("corrected") or 0
    limit = context.thresholds.get("memory-corrected").value
    threshold = f"0 uncorrected, at most {limit:g} corrected"
    mend = "'edac-util -v' or 'ras-mc-ctl --errors' names the module; have it replaced"
    if uncorrected:
        return failed(f"{uncorrected} uncorrected", threshold, mend)
    value = f"{corrected} corrected"
    return passed(value, threshold) if corrected <= limit else warning(value, threshold, mend)


def shared(facts: Facts, context: Context) -> Outcome:
    """`/dev/shm` is large enough, and not full of what ended jobs left."""
    size, free = facts.count("shm_total"), facts.count("shm_free")
    if size is None or free is None:
        return failed("/dev/shm is not there", "mounted", "'mount -t tmpfs tmpfs /dev/shm'")
    least, most_used = context.thresholds.get("shm-size").value, context.thresholds.get("shm-use").value
    value, threshold = f"{size / _GIB:.1f} GiB", f"at least {least:g} GiB, at most {most_used:.0%} in use"
    if size < least * _GIB:
        mend = f"'mount -o remount,size={least:g}G /dev/shm'; in a container --shm-size={least:g}g or --ipc=host"
        return failed(value, threshold, mend)
    used = 1 - free / size
    if used > most_used:
        mend = "remove what ended jobs left: 'ls -l /dev/shm', 'glmforge cluster clean'"
        return warning(f"{used:.0%} of {value} in use", threshold, mend)
    return passed(value, threshold)


def machine_checks(facts: Facts, context: Context) -> Outcome:
    """None of the last hours in the kernel's log."""
    mend = "'ras-mc-ctl --errors' or 'mcelog' names the part: CPU, memory or bus; have it replaced"
    return _logged(facts, context, "machine_checks", "hardware errors", mend, failed)


def out_of_memory(facts: Facts, context: Context) -> Outcome:
    """No process was killed for lack of memory in the last hours."""
    mend = "look in the kernel's log at who was killed and who held the memory"
    return _logged(facts, context, "out_of_memory", "lines about lack of memory", mend, warning)


def _logged(
    facts: Facts, context: Context, name: str, what: str, mend: str, how: Callable[[str, str, str], Outcome]
) -> Outcome:
    if not facts.flag("readable"):
        return skipped("the kernel's log cannot be read", "run the check as root, or set kernel.dmesg_restrict to 0")
    hours = context.thresholds.get("kernel-log-hours").value
    found = [each for each in facts.each(name) if (each.number("age", 0) or 0.0) <= 3600 * hours]
    threshold = f"none within {hours:g} hours"
    if found:
        return how(f"{len(found)} {what}; the last: {found[-1].text('line')}", threshold, mend)
    return passed("none", threshold)


CHECKS = (
    Check("memory.total", "as much memory as on the other nodes", Level.QUICK, "memory", compare=total),
    Check("memory.available", "free memory", Level.QUICK, "memory", judge=available),
    Check("memory.swap", "memory that was swapped out", Level.STANDARD, "memory", judge=swap),
    Check("memory.hugepages", "memory set aside for huge pages", Level.STANDARD, "memory", judge=hugepages),
    Check("memory.errors", "errors that memory controllers counted", Level.QUICK, "memory", judge=controllers),
    Check("memory.shm", "size and use of /dev/shm", Level.QUICK, "memory", judge=shared),
    Check("memory.machine-checks", "hardware errors in the kernel's log", Level.QUICK, "kernel", judge=machine_checks),
    Check("memory.out-of-memory", "processes killed for lack of memory", Level.QUICK, "kernel", judge=out_of_memory),
)
