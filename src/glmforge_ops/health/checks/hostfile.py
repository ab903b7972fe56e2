"""The list of machines itself: is each name another machine, with as many places as it has GPUs?"""

from collections.abc import Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_DISTINCT = "another machine than the others"


def machines(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Two names of one machine would give it twice the ranks.

    Known by boot and host name together: containers of one machine share the boot, clones the machine's id.
    """
    outcomes: dict[str, Outcome] = {}
    known: dict[tuple[str | None, ...], list[str]] = {}
    for host, of_host in facts.items():
        try:
            known.setdefault((of_host.text("boot"), of_host.text("machine"), of_host.text("hostname")), []).append(host)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
    for hosts in known.values():
        for host in hosts:
            others = [other for other in hosts if other != host]
            outcomes[host] = (
                failed(f"is the same machine as {', '.join(others[:4])}", _DISTINCT, "keep one of the names")
                if others
                else passed("is one machine", _DISTINCT)
            )
    return outcomes


def slots(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Places for ranks in the hostfile against GPUs in /dev."""
    outcomes: dict[str, Outcome] = {}
    for host, of_host in facts.items():
        machine = context.machines.get(host)
        try:
            outcomes[host] = _judge_slots(of_host, machine.slots if machine is not None else None)
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
    return outcomes


def _judge_slots(facts: Facts, wanted: int | None) -> Outcome:
    gpus = int(facts.number("gpus") or 0)
    if wanted is None:
        return skipped("no slots are given", "write slots=8 in the hostfile, or gpus_per_node in cluster.yaml")
    if gpus == 0:
        return skipped(f"slots={wanted}, but there are no GPUs to count")
    value, threshold = f"slots={wanted}, {gpus} GPUs", "as many slots as GPUs"
    if wanted == gpus:
        return passed(value, threshold)
    return failed(value, threshold, "correct the hostfile, or look for the GPU that is missing: lspci, dmesg")


CHECKS = (
    Check("hostfile.machines", "each name is a machine of its own", Level.STANDARD, "identity", compare=machines),
    Check("hostfile.slots", "as many slots as GPUs", Level.STANDARD, "identity", compare=slots),
)
