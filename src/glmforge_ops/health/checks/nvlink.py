"""NVLink: links that should be up, and how GPUs and network cards are joined."""

from collections.abc import Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.equal import compare_facts
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, together, warning

_NEAR = ("PIX", "PXB")
"""At most PCIe switches in between: only then does a card read a GPU's memory at full speed."""


def links(facts: Facts, context: Context) -> Outcome:
    """All of a GPU's links are up, and as many as its model has."""
    gpus = facts.each("gpus")
    if not gpus:
        return skipped("nvidia-smi tells nothing of NVLink here")
    outcomes = {f"GPU {gpu.count('index')}": _links_of(gpu, context) for gpu in gpus}
    if all(outcome is None for outcome in outcomes.values()):
        return skipped("these GPUs have no NVLink")
    known = {name: outcome or skipped("has no links") for name, outcome in outcomes.items()}
    return together(known, next(iter(known.values())).value)


def _links_of(gpu: Facts, context: Context) -> Outcome | None:
    active, inactive = gpu.count("active") or 0, gpu.numbers("inactive")
    row = context.thresholds.find("nvlink-links", gpu.text("name") or "")
    if row is None and not active and not inactive:
        return None
    expected = int(row.value) if row is not None else active + len(inactive)
    threshold = f"{expected} links up"
    mend = "look at 'nvidia-smi nvlink -e' and the fabric manager ('systemctl status nvidia-fabricmanager'); reset"
    if inactive:
        told = ", ".join(f"{link:g}" for link in inactive[:8])
        return failed(f"{active} of {expected} links up, down: {told}", threshold, mend)
    if active < expected:
        return failed(f"{active} of {expected} links up", threshold, mend)
    return passed(f"{active} links up", threshold)


def topology(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """The same everywhere: a job's ranks are laid out for one topology."""
    mend = "compare 'nvidia-smi topo -m' with that of another node: a card in another slot, or a link that is down"
    return compare_facts(nodes, _joined, "topology", mend, absent="nvidia-smi tells no topology here")


def _joined(facts: Facts) -> str | None:
    """Ways between GPUs by kind, whatever order the cards are numbered in: "NV18 x 56"."""
    kinds = [pair.text("by") or "?" for pair in _pairs(facts, "GPU", "GPU")]
    return ", ".join(f"{kind} x {kinds.count(kind)}" for kind in sorted(set(kinds))) or None


def near_network(facts: Facts, context: Context) -> Outcome:
    """Each GPU has a network card behind the same PCIe switch."""
    ways: dict[str, list[str]] = {}
    for pair in _pairs(facts, "GPU", "NIC"):
        ways.setdefault(pair.text("from") or "?", []).append(pair.text("by") or "?")
    if not ways:
        return skipped("no network card is told in 'nvidia-smi topo -m'")
    far = sorted(gpu for gpu, kinds in ways.items() if not any(kind in _NEAR for kind in kinds))
    threshold = "PIX or PXB from each GPU to a network card"
    if far and len(far) < len(ways):  # on a machine where none is near, that is how it is built
        mend = "look for a network card that is missing or sits in another slot: 'nvidia-smi topo -m'"
        return warning(f"{', '.join(far)}: no network card near", threshold, mend)
    return skipped("no GPU of this machine has a card near") if far else passed("each has one", threshold)


def _pairs(facts: Facts, of: str, to: str) -> list[Facts]:
    return [
        pair
        for pair in facts.each("topology")
        if (pair.text("from") or "").startswith(of) and (pair.text("to") or "").startswith(to)
    ]


CHECKS = (
    Check("nvlink.links", "NVLink links that are up", Level.QUICK, "nvlink", judge=links),
    Check("nvlink.topology", "GPUs joined the same way on all nodes", Level.STANDARD, "nvlink", compare=topology),
    Check("nvlink.network", "a network card near each GPU", Level.STANDARD, "nvlink", judge=near_network),
)
