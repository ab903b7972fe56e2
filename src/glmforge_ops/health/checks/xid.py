"""Errors that the driver wrote into the kernel's log: Xid, and what each kind means for the node."""

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning

_OF_APPLICATIONS = frozenset({8, 11, 13, 31, 43, 45, 68, 69, 137})
"""Raised by a program's own mistake, or after another error ended it."""

_RESET, _REPLACE = "drain the node and reset the GPU, or reboot", "drain the node, power it off and on, and report it"
_BROKEN = {
    46: ("the GPU stopped", _RESET),
    48: ("an uncorrectable memory error", _RESET),
    62: ("the GPU's own controller stopped", _RESET),
    63: ("a row of memory was remapped", "drain the node and reset the GPU; gpu.remapped-rows tells the rest"),
    64: ("a row of memory could not be remapped", _REPLACE),
    74: ("an NVLink error", "check the link with 'nvidia-smi nvlink -e'; reset all GPUs of the node"),
    79: ("the GPU fell off the bus", _REPLACE),
    92: ("many corrected memory errors", "run 'dcgmi diag -r 3'"),
    94: ("a memory error, contained in one program", _RESET),
    95: ("a memory error that may have spread", _RESET),
    109: ("a context switch that did not end", _RESET),
    119: ("the GPU's system processor does not answer", _RESET),
    120: ("an error of the GPU's system processor", _RESET),
    136: ("an NVLink that does not come up", _RESET),
    140: ("an uncorrectable memory error", _RESET),
    143: ("a GPU that does not start", _REPLACE),
    149: ("an NVLink error of the network", "look at 'nvidia-smi nvlink -e' and at the fabric manager's log"),
    155: ("an NVLink that does not train", _RESET),
}


def xid(facts: Facts, context: Context) -> Outcome:
    """None of the last hours that hardware or driver raised; what programs raise themselves is told only."""
    if context.cluster.gpus_per_node == 0:
        return skipped("the cluster has no GPUs")
    if not facts.flag("readable"):
        return skipped("the kernel's log cannot be read", "run the check as root, or set kernel.dmesg_restrict to 0")
    hours = context.thresholds.get("kernel-log-hours").value
    threshold = f"none of hardware within {hours:g} hours"
    recent = [each for each in facts.each("xids") if (each.number("age") or 0.0) <= 3600 * hours]
    found = {(each.text("gpu") or "?", each.count("xid") or 0) for each in recent}
    broken = sorted((gpu, number) for gpu, number in found if number in _BROKEN)
    if broken:
        told = "; ".join(f"Xid {number} on {gpu}: {_BROKEN[number][0]}" for gpu, number in broken[:4])
        return failed(told, threshold, _BROKEN[broken[0][1]][1])
    unknown = sorted((gpu, number) for gpu, number in found if number not in _OF_APPLICATIONS)
    if unknown:
        told = "; ".join(f"Xid {number} on {gpu}" for gpu, number in unknown[:4])
        return warning(told, threshold, "look it up in NVIDIA's Xid catalog")
    return passed(f"{len(found)} of programs" if found else "none", threshold)


CHECKS = (Check("gpu.xid", "errors of GPUs in the kernel's log", Level.QUICK, "kernel", judge=xid),)
