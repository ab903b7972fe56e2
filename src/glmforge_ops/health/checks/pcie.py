"""Links of GPUs, network cards and NVMe disks to the machine: width, speed, errors, and the CPU that they are at."""

from collections.abc import Callable

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, together, warning


def width(device: Facts, context: Context) -> Outcome:
    """All lanes that the card has."""
    now, most = device.count("width"), device.count("width_max")
    if now is None or most is None:
        return skipped("the width is not told")
    mend = "power the node off and seat the card anew; if it stays, change the slot, the riser or the card"
    return passed(f"x{now}", "full width") if now >= most else failed(f"x{now}", f"x{most}", mend)


def speed(device: Facts, context: Context) -> Outcome:
    """The speed of the card, or of its slot if that is slower. An idle GPU may lower it to save power."""
    now, most, slot = device.number("speed", 0), device.number("speed_max", 0), device.number("slot_speed", 0)
    if now is None or most is None:
        return skipped("the speed is not told")
    if slot is not None and slot < most:
        threshold, value = f"{most:g} GT/s", f"the slot gives {slot:g} GT/s"
        return warning(value, threshold, "use a slot of the card's own generation, or set it so in the BIOS")
    threshold = f"{most:g} GT/s"
    if now >= most:
        return passed(threshold, threshold)
    if device.text("kind") == "GPU":
        mend = "look again while it works; if it stays so, seat the card anew and look at the BIOS's setting"
        return warning(f"{now:g} GT/s", threshold, mend)
    return failed(f"{now:g} GT/s", threshold, "seat the card anew; look at the slot's setting in the BIOS")


def errors(device: Facts, context: Context) -> Outcome:
    """No uncorrected error since boot."""
    fatal, nonfatal = device.count("fatal"), device.count("nonfatal")
    mend = "seat the card and its riser anew; if errors come again, have it replaced"
    if fatal:
        return failed(f"{fatal} fatal errors", "0 since boot", mend)
    if nonfatal:
        return warning(f"{nonfatal} uncorrected errors", "0 since boot", mend)
    return skipped("not reported by this machine") if fatal is None else passed("0", "0 since boot")


def placement(facts: Facts, context: Context) -> Outcome:
    """The machine tells at which CPU each GPU and network card is; ranks are pinned by it."""
    nodes = facts.count("numa_nodes") or 0
    devices = [device for device in facts.each("devices") if device.text("kind") in ("GPU", "NIC")]
    if nodes < 2 or not devices:
        return skipped("one NUMA node only" if devices else "no GPU or network card was found")
    unknown = [device.text("address") or "?" for device in devices if (device.number("numa_node") or 0) < 0]
    threshold = "a NUMA node for each GPU and network card"
    if unknown:
        mend = "switch on NUMA and the tables of affinity in the BIOS, or update it"
        return warning(f"none is known for {', '.join(unknown[:4])}", threshold, mend)
    return passed(f"{len(devices)} cards on {nodes} NUMA nodes", threshold)


def _of_each(judge: Callable[[Facts, Context], Outcome], well: str) -> Callable[[Facts, Context], Outcome]:
    def judge_all(facts: Facts, context: Context) -> Outcome:
        devices = facts.each("devices")
        if not devices:
            return skipped("no GPU, network card or NVMe disk was found on PCIe")
        names = [f"{device.text('kind')} {device.text('address')}" for device in devices]
        outcomes = {name: judge(device, context) for name, device in zip(names, devices, strict=True)}
        return together(outcomes, well.format(count=len(devices)))

    return judge_all


CHECKS = (
    Check("pcie.width", "lanes of PCIe links", Level.QUICK, "pcie", judge=_of_each(width, "{count} at full width")),
    Check("pcie.speed", "speed of PCIe links", Level.QUICK, "pcie", judge=_of_each(speed, "{count} at full speed")),
    Check("pcie.errors", "uncorrected errors on PCIe", Level.QUICK, "pcie", judge=_of_each(errors, "0 on {count}")),
    Check("numa.placement", "the CPU that each card is at", Level.STANDARD, "pcie", judge=placement),
)
