"""How fast the disk of a node's own is."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.disk import NO_PATH
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, worst

_MEND = "look for other users of the disk, its temperature and wear (nvme.health), its PCIe link, a RAID that rebuilds"


def speed(facts: Facts, context: Context) -> Outcome:
    """Sequential reading and writing, and small reads, against what the kind of disk can do."""
    if facts.text("path") is None:
        return NO_PATH
    if facts.flag("has_fio") is False:
        return skipped("fio is not installed", "apt-get install fio")
    if facts.text("error") is not None:
        return skipped(f"fio did not run: {facts.text('error')}", "see disk.local and disk.space")
    device = (facts.text("source") or "").rpartition("/")[2]
    return worst(
        [
            _against(facts, context, device, "disk-read", "read", "reads {:.2f} GB/s", 1e9),
            _against(facts, context, device, "disk-write", "write", "writes {:.2f} GB/s", 1e9),
            _against(facts, context, device, "disk-iops", "iops", "{:,.0f} reads of 4 KiB/s", 1),
        ]
    )


def _against(facts: Facts, context: Context, device: str, limit: str, fact: str, words: str, unit: float) -> Outcome:
    found = facts.number(fact)
    if found is None:
        return skipped("there is no such directory")
    value, least = words.format(found / unit), context.thresholds.find(limit, device)
    if least is None:
        return skipped(f"{value}; no limit is known for {device or 'its disk'}", f"set thresholds: {limit}")
    threshold = f"at least {least.value:,g} {least.unit}"
    return passed(value, threshold) if found / unit >= least.value else failed(value, threshold, _MEND)


CHECKS = (Check("disk.speed", "bandwidth and small reads of local_path", Level.THOROUGH, "disk_speed", judge=speed),)
