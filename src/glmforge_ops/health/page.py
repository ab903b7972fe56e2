"""What a look found out, as a page of lines and as JSON."""

from collections.abc import Iterator
from typing import Any

from glmforge.files import escaped
from glmforge.observe.units import format_bytes, format_duration
from glmforge_ops.health.checks.check import NONSENSE, Facts, Status
from glmforge_ops.health.checks.examine import outcome_json
from glmforge_ops.health.look import PARTS, Health

_MOST_PROCESSES = 8

Line = tuple[str, str, str]
"""Verdict ("" for a plain fact), subject, words."""


def lines(health: Health) -> Iterator[Line]:
    """The page: facts first, then what the checks and the linter say."""
    yield from (("", subject, words) for subject, words in _system(health.system))
    for part, write in {"disks": _mounts, "gpus": _gpus}.items():
        try:
            found = list(write(health.facts[part])) if part in health.facts else None
        except NONSENSE as error:
            yield Status.FAIL.value, part, f"makes no sense: {error}"
            continue
        yield from (("", subject, words) for subject, words in found or ())
        if found is None:
            yield Status.FAIL.value, part, health.lost[part]
    yield "", "versions", ", ".join(f"{name} {version}" for name, version in health.versions.items())
    for name, outcome in health.outcomes.items():
        if outcome.status is Status.SKIPPED:
            continue
        limit = f" ({outcome.threshold})" if outcome.threshold else ""
        fix = f": {outcome.fix}" if outcome.fix else ""
        yield outcome.status.value, name, f"{outcome.value}{limit}{fix}"
    if skipped := [name for name, outcome in health.outcomes.items() if outcome.status is Status.SKIPPED]:
        yield Status.SKIPPED.value, "not judged", ", ".join(skipped)
    for finding in health.environment:
        status = Status.FAIL if finding.severity == "error" else Status.WARNING
        value = "" if finding.value is None else f"={finding.value}"
        yield status.value, "environment", f"{finding.name}{value}: {finding.problem}: {finding.instead}"
    if not health.environment:
        yield Status.PASS.value, "environment", "no variable that is wrong, gone or harmful"


def as_dict(health: Health) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "counts": {status.value: health.count(status) for status in Status},
        "facts": {"system": health.system, **{part: health.facts[part] for part in PARTS if part in health.facts}},
        "lost": dict(health.lost),
        "versions": dict(health.versions),
        "checks": {name: outcome_json(outcome) for name, outcome in health.outcomes.items()},
        "environment": [finding.as_dict() for finding in health.environment],
    }


def _system(facts: Facts) -> Iterator[tuple[str, str]]:
    yield (
        "machine",
        f"{facts['host']}, {facts['system']}, Linux {facts['kernel']}, up {format_duration(facts['uptime_s'])}",
    )
    yield "processor", f"{facts['cores']} cores, load {facts['load']:.1f}"
    memory, swap, shared, limits = (facts[name] for name in ("memory", "swap", "shared_memory", "limits"))
    words = f", swap {_bytes(swap['free'])} of {_bytes(swap['total'])} free" if swap["total"] else ""
    yield "memory", f"{_bytes(memory['available'])} of {_bytes(memory['total'])} available{words}"
    yield "/dev/shm", f"{_bytes(shared['free'])} of {_bytes(shared['total'])} free"
    files, processes = _count(limits["open_files"]), _count(limits["processes"])
    yield "limits", f"open files {files}, locked memory {_bytes(limits['locked_memory'])}, processes {processes}"
    for each in facts["interfaces"]:
        rate = "" if each["speed"] is None else f", {each['speed'] / 1000:g} Gbit/s"
        yield "network", f"{each['name']} {each['state']}{rate}, MTU {each['mtu']}"
    for each in facts["training"][:_MOST_PROCESSES]:
        left = "; what started it has ended" if each["parent"] == 1 else ""
        who = f"process {each['pid']} of {each['user']}, for {format_duration(each['age_s'])}{left}"
        yield "training", f"{who}: {escaped(each['command'])}"
    if len(facts["training"]) > _MOST_PROCESSES:
        yield "training", f"and {len(facts['training']) - _MOST_PROCESSES} more processes"


def _mounts(facts: Facts) -> Iterator[tuple[str, str]]:
    for each in facts["mounts"]:
        words = f"{each['free_gb']:,.1f} of {each['total_gb']:,.1f} GB free, {each['type']}"
        words += f", {each['free_inodes']:.0f} % of inodes free"
        words += ", read-only" if "ro" in each["options"].split(",") else ""
        yield "disk", f"{each['point']}: {words} ({', '.join(each['paths'])})"
    for path in facts["missing"]:
        yield "disk", f"{path}: is not there"


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    driver, cuda = facts["driver"], facts["cuda"]
    if not facts["gpus"]:
        yield "GPUs", "none" if facts["error"] is None else f"none: {facts['error']}"
        return
    newest = "" if cuda is None else f", CUDA up to {cuda // 1000}.{cuda % 1000 // 10}"
    yield "GPUs", f"{len(facts['gpus'])}, driver {driver or 'unknown'}{newest}"
    for gpu in facts["gpus"]:
        yield "GPU", f"{gpu['index']}: {_gpu(gpu)}"


def _gpu(gpu: Facts) -> str:
    if gpu["lost"]:
        return "lost: it has fallen off its bus; reboot the node, and look for Xid 79"
    parts = [f"{_bytes(gpu['memory_used'])} of {_bytes(gpu['memory_total'])} used"] if gpu["memory_total"] else []
    words = (("utilization", "% busy"), ("temperature", "degrees C"), ("ecc_uncorrected", "uncorrected memory errors"))
    parts += [f"{gpu[fact]:g} {unit}" for fact, unit in words if gpu[fact]]
    users = [f"{each['pid']} ({(each['command'] or '?')[:40]})" for each in gpu["processes"] or ()]
    parts += [f"used by {', '.join(users[:_MOST_PROCESSES])}"] if users else []
    return f"{gpu['name'] or 'unknown'}: " + (", ".join(parts) or "nothing is known")


def _bytes(count: float | None) -> str:
    return "unlimited" if count is None or count < 0 else format_bytes(count)


def _count(number: float | None) -> str:
    return "unlimited" if number is None or number < 0 else f"{number:,.0f}" if number >= 100_000 else f"{number:.0f}"
