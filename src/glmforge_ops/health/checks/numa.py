"""CPUs and NUMA nodes: all of them there and allowed, at full speed, and with memory."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, passed, skipped, together, warning


def cpus(facts: Facts, context: Context) -> Outcome:
    """None is switched off."""
    online, present = facts.count("online"), facts.count("present")
    if online is None or present is None:
        return skipped("CPUs are not told")
    mend = "'chcpu -e' switches them on; if they stay off, look at the kernel's log"
    threshold = f"{present} CPUs, as many as there are"
    return passed(f"{online} CPUs", threshold) if online >= present else warning(f"{online} on", threshold, mend)


def pinning(facts: Facts, context: Context) -> Outcome:
    """What comes in through ssh or Slurm may use all of them: a job's own pinning cannot give back what is missing."""
    allowed, online = facts.count("allowed"), facts.count("online")
    if allowed is None or online is None:
        return skipped("CPUs are not told")
    threshold = f"all {online} CPUs"
    mend = "look at 'taskset -p $$', the service's CPUAffinity or AllowedCPUs, Slurm's CoreSpecCount"
    return passed(f"{allowed}", threshold) if allowed >= online else warning(f"{allowed} allowed", threshold, mend)


def memory(facts: Facts, context: Context) -> Outcome:
    """Each NUMA node has some of its own."""
    nodes, empty = facts.count("nodes"), facts.texts("empty_nodes")
    if not nodes:
        return skipped("NUMA nodes are not told")
    mend = "look for memory modules that the BIOS switched off; a CPU without memory reads the other's"
    if empty and len(empty) < nodes:
        return warning(f"{', '.join(empty)} without memory", "memory on each node", mend)
    return skipped("memory of nodes is not told") if empty else passed(f"{nodes} nodes", "memory on each node")


def governor(facts: Facts, context: Context) -> Outcome:
    """CPUs do not save power: launching kernels is work of one core."""
    governors = facts.texts("governors")
    if not governors:
        return skipped("the kernel does not set frequencies here")
    mend = "'cpupower frequency-set -g performance', and have it set at boot (tuned-adm profile hpc-compute)"
    wrong = [name for name in governors if name != "performance"]
    return warning(" and ".join(wrong), "performance", mend) if wrong else passed("performance", "performance")


def transparent_hugepages(facts: Facts, context: Context) -> Outcome:
    """Not forbidden."""
    found = facts.text("transparent_hugepages")
    if found is None:
        return skipped("the kernel does not tell")
    mend = "'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'"
    return warning(found, "madvise or always", mend) if found == "never" else passed(found, "madvise or always")


def interrupts(facts: Facts, context: Context) -> Outcome:
    """Those of a network card are not all taken by one CPU."""
    outcomes = {card.text("device") or "?": _interrupts_of(card) for card in facts.each("interrupts")}
    if not outcomes:
        return skipped("no interrupts of network cards with RDMA are told")
    how = "irqbalance runs" if facts.flag("irqbalance") else "irqbalance does not run"
    return together(outcomes, f"spread; {how}")


def _interrupts_of(card: Facts) -> Outcome:
    number, cpus_used = card.count("interrupts") or 0, card.count("cpus") or 0
    threshold, mend = "more than one CPU", "start irqbalance, or 'set_irq_affinity_bynode.sh' of mlnx-tools"
    if number > 1 and cpus_used == 1:
        return warning(f"{number} interrupts on one CPU", threshold, mend)
    return passed(f"{number} interrupts on {cpus_used} CPUs", threshold)


CHECKS = (
    Check("numa.cpus", "CPUs that are switched off", Level.QUICK, "numa", judge=cpus),
    Check("numa.pinning", "CPUs that jobs may use", Level.QUICK, "numa", judge=pinning),
    Check("numa.memory", "NUMA nodes without memory", Level.STANDARD, "numa", judge=memory),
    Check("numa.governor", "frequency governor of CPUs", Level.STANDARD, "numa", judge=governor),
    Check("numa.hugepages", "transparent huge pages", Level.STANDARD, "numa", judge=transparent_hugepages),
    Check("numa.interrupts", "interrupts of network cards", Level.STANDARD, "numa", judge=interrupts),
)
