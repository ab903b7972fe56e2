"""Health of NVMe disks: those that are worn, failing or gone from their controller."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning, worst

# Bits of the critical warning: NVM Express base specification 1.4, section 5.14.1.2, byte 0.
_CRITICAL = (
    "its spare blocks are used up",
    "it is too hot or too cold",
    "it is no longer reliable",
    "it takes no more writes",
    "its backup power has failed",
    "its persistent memory region has become read-only",
)


def health(facts: Facts, context: Context) -> Outcome:
    """The worst of all disks."""
    disks = facts.each("disks")
    if not disks:
        return skipped("there are no NVMe disks")
    return worst([_disk(disk, facts.text("tool"), context) for disk in disks])


def _disk(disk: Facts, tool: str | None, context: Context) -> Outcome:
    name, state, error = disk.text("name"), disk.text("state"), disk.text("error")
    if state not in ("live", None):
        mend = "look at dmesg; reseat or replace it"
        return failed(f"{name} is {state}", "live", mend)
    if tool is None:
        return skipped(f"{name} is live; its wear is not known", "apt-get install nvme-cli")
    critical, used = disk.number("critical"), disk.number("used_percent")
    if error is not None or (critical is None and used is None):
        return skipped(f"{name}: {error or 'says nothing of its wear'}", "let this user run it: as root")
    if critical:
        wrong = [text for bit, text in enumerate(_CRITICAL) if int(critical) >> bit & 1]
        return failed(f"{name}: {', '.join(wrong) or f'critical warning {int(critical)}'}", "healthy", "replace it")
    return _wear(disk, f"{name}: {used:g} % of its life used" if used is not None else f"{name}", context)


def _wear(disk: Facts, value: str, context: Context) -> Outcome:
    most = context.thresholds.get("nvme-wear").value
    used, errors = disk.number("used_percent"), disk.number("media_errors")
    if used is not None and used >= most:
        return warning(value, f"under {most:g} %", "plan its replacement")
    if errors:
        mend = "data on it could not be read: replace it before it holds checkpoints"
        return warning(f"{disk.text('name')}: {int(errors)} media errors", "none", mend)
    return passed(value, f"under {most:g} %")


CHECKS = (Check("nvme.health", "NVMe disks are live, not worn, without errors", Level.STANDARD, "nvme", judge=health),)
