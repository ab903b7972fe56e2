"""CPUs and where memory is: NUMA nodes, affinity, frequency governor, large pages, interrupts of network cards."""

from __future__ import annotations

import os
import re

from glmforge_ops.health.checks.probes.reading import cpus_of, names_in, read_text


def gather(cluster: dict) -> dict:
    system = "/sys/devices/system"
    nodes = [name for name in names_in(f"{system}/node") if re.fullmatch(r"node\d+", name)]
    online = cpus_of(read_text(f"{system}/cpu/online"))
    chosen = re.search(r"\[(\w+)\]", read_text("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return {
        "nodes": len(nodes),
        "empty_nodes": [name for name in nodes if not _memory_of(f"{system}/node/{name}/meminfo")],
        "online": len(online) or None,
        "present": len(cpus_of(read_text(f"{system}/cpu/present"))) or None,
        "allowed": len(os.sched_getaffinity(0)),
        "governors": sorted({text for text in map(_governor, sorted(online)) if text}),
        "transparent_hugepages": chosen.group(1) if chosen else None,
        "interrupts": _interrupts(),
        "irqbalance": any(read_text(f"/proc/{pid}/comm") == "irqbalance" for pid in names_in("/proc") if pid.isdigit()),
    }


def _governor(cpu: int) -> str | None:
    return read_text(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")


def _memory_of(path: str) -> float | None:
    found = re.search(r"MemTotal:\s*(\d+)", read_text(path) or "")
    return float(found.group(1)) if found else None


def _interrupts() -> list[dict]:
    """Of each network card with RDMA: how many interrupts it has, and how many CPUs take them."""
    cards = []
    for name in names_in("/sys/class/infiniband"):
        numbers = names_in(f"/sys/class/infiniband/{name}/device/msi_irqs")
        taken = [cpus_of(read_text(f"/proc/irq/{number}/effective_affinity_list")) for number in numbers]
        taken = [cpus for cpus in taken if cpus]
        if taken:
            cards.append({"device": name, "interrupts": len(taken), "cpus": len(set().union(*taken))})
    return cards
