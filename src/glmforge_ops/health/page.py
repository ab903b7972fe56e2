"""What a look found out, as a page of lines and as JSON."""

from collections.abc import Iterator
from typing import Any

from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Status
from glmforge_ops.health.look import PARTS, Health

_GIB, _MIB = 2**30, 2**20
_DAY_S, _HOUR_S = 86_400, 3_600
_WORDS = {"overview": "system", "overview_mounts": "disks", "gpu": "GPUs"}
_MOST_PROCESSES = 8

Line = tuple[str, str, str]
"""Verdict ("" for a plain fact), subject, words."""


def lines(health: Health) -> Iterator[Line]:
    """The page: facts first, then what the checks and the linter say."""
    writers = {"overview": _overview, "overview_mounts": _mounts, "gpu": _gpus}
    for part in PARTS:
        if part in health.lost:
            yield Status.FAIL.value, _WORDS[part], health.lost[part]
            continue
        try:
            yield from [("", subject, words) for subject, words in writers[part](health.facts[part])]
        except FactError as error:
            yield Status.FAIL.value, _WORDS[part], f"makes no sense: {error}"
    yield "", "versions", ", ".join(f"{name} {version}" for name, version in health.versions.items())
    for name, outcome in health.outcomes.items():
        if outcome.status is Status.SKIPPED:
            continue
        limit = f" ({outcome.threshold})" if outcome.threshold else ""
        mend = f": {outcome.mend}" if outcome.mend else ""
        yield outcome.status.value, name, f"{outcome.value}{limit}{mend}"
    if skipped := [name for name, outcome in health.outcomes.items() if outcome.status is Status.SKIPPED]:
        yield Status.SKIPPED.value, "not judged", ", ".join(skipped)
    for finding in health.environment:
        status = Status.FAIL if finding.severity == "error" else Status.WARNING
        value = "" if finding.value is None else f"={finding.value}"
        yield status.value, "environment", f"{finding.name}{value}: {finding.problem}: {finding.instead}"
    if not health.environment:
        yield Status.PASS.value, "environment", "no variable that is wrong, gone or harmful"


def summary(health: Health) -> str:
    """One line of counts."""
    words = {Status.PASS: "passed", Status.WARNING: "to be warned of", Status.FAIL: "failed", Status.SKIPPED: "skipped"}
    return ", ".join(f"{health.count(status)} {word}" for status, word in words.items())


def as_dict(health: Health) -> dict[str, Any]:
    """Everything, for a program."""
    return {
        "counts": {status.value: health.count(status) for status in Status},
        "facts": {_WORDS[part].lower(): health.facts[part].plain() for part in PARTS if part in health.facts},
        "lost": {_WORDS[part].lower(): reason for part, reason in health.lost.items()},
        "versions": dict(health.versions),
        "checks": {
            name: {"status": one.status.value, "value": one.value, "threshold": one.threshold, "mend": one.mend}
            for name, one in health.outcomes.items()
        },
        "environment": [finding.as_dict() for finding in health.environment],
    }


def _overview(facts: Facts) -> Iterator[tuple[str, str]]:
    uptime = facts.number("uptime_s")
    up = "" if uptime is None else f", up {_age(uptime)}"
    yield "machine", f"{facts.text('host')}, {facts.text('system')}, Linux {facts.text('kernel')}{up}"
    yield "processor", f"{_count(facts.number('cores'))} cores, load {facts.number('load'):.1f}"
    if (memory := facts.inner("memory")) is not None:
        swap = memory.number("swap_total")
        words = f"{_bytes(memory.number('available'))} of {_bytes(memory.number('total'))} available"
        yield "memory", words + (f", swap {_bytes(memory.number('swap_free'))} of {_bytes(swap)} free" if swap else "")
    if (shared := facts.inner("shared_memory")) is not None:
        yield "/dev/shm", f"{_bytes(shared.number('free'))} of {_bytes(shared.number('total'))} free"
    if (limits := facts.inner("limits")) is not None:
        files, processes = _count(limits.number("open_files")), _count(limits.number("processes"))
        yield (
            "limits",
            f"open files {files}, locked memory {_bytes(limits.number('locked_memory'))}, processes {processes}",
        )
    for each in facts.each("interfaces"):
        speed = each.number("speed")
        rate = "" if speed is None else f", {speed / 1000:g} Gbit/s"
        yield "network", f"{each.text('name')} {each.text('state')}{rate}, MTU {_count(each.number('mtu'))}"
    for each in facts.each("rdma_ports"):
        yield "RDMA", f"{each.text('name')} {each.text('link_layer')}, {each.text('state')}, {each.text('rate')}"
    yield from _training(facts.each("training"))


def _training(processes: list[Facts]) -> Iterator[tuple[str, str]]:
    for each in processes[:_MOST_PROCESSES]:
        age = each.number("age_s")
        left = "; what started it has ended" if each.number("parent") == 1 else ""
        began = "" if age is None else f", for {_age(age)}"
        yield (
            "training",
            f"process {_count(each.number('pid'))} of {each.text('user')}{began}{left}: {each.text('command')}",
        )
    if len(processes) > _MOST_PROCESSES:
        yield "training", f"and {len(processes) - _MOST_PROCESSES} more processes"


def _mounts(facts: Facts) -> Iterator[tuple[str, str]]:
    for each in facts.each("mounts"):
        words = f"{_bytes(each.number('free'))} of {_bytes(each.number('total'))} free, {each.text('kind')}"
        files, free = each.number("files"), each.number("files_free")
        if files and free is not None:
            words += f", {100 * free / files:.0f} % of inodes free"
        words += ", read-only" if each.flag("read_only") else ""
        yield "disk", f"{each.text('place')}: {words} ({', '.join(each.texts('paths'))})"
    for path in facts.texts("missing"):
        yield "disk", f"{path}: is not there"


def _gpus(facts: Facts) -> Iterator[tuple[str, str]]:
    gpus, error = facts.each("gpus"), facts.text("error")
    driver, cuda = facts.text("driver"), facts.number("cuda")
    if not gpus:
        yield "GPUs", "none" if error is None else f"none: {error}"
    else:
        newest = "" if cuda is None else f", CUDA up to {cuda // 1000:.0f}.{cuda % 1000 // 10:.0f}"
        yield "GPUs", f"{len(gpus)}, driver {driver or 'unknown'}{newest}"
    for gpu in gpus:
        yield "GPU", _gpu(gpu)


def _gpu(gpu: Facts) -> str:
    index = _count(gpu.number("index"))
    if gpu.flag("lost"):
        return f"{index}: lost: it has fallen off its bus; reboot the node, and look for Xid 79"
    parts = []
    total, used = gpu.number("memory_total"), gpu.number("memory_used")
    if total is not None and used is not None:
        parts.append(f"{_bytes(used)} of {_bytes(total)} used")
    for fact, unit in (("utilization", " % busy"), ("temperature", " degrees C")):
        value = gpu.number(fact)
        parts += [] if value is None else [f"{value:g}{unit}"]
    if errors := gpu.number("ecc_uncorrected"):
        parts.append(f"{errors:g} uncorrected memory errors")
    users = [_user_of(each) for each in gpu.each("processes")]
    parts += [f"used by {', '.join(users[:_MOST_PROCESSES])}"] if users else []
    return f"{index}: {gpu.text('name') or 'unknown'}: " + (", ".join(parts) or "nothing is known")


def _user_of(process: Facts) -> str:
    """A process on a GPU; another container's has a number and nothing else."""
    command = process.text("command")
    return _count(process.number("pid")) + ("" if command is None else f" ({command[:40]})")


def _bytes(count: float | None) -> str:
    if count is None:
        return "unlimited"
    return f"{count / _GIB:.1f} GiB" if count >= _GIB / 10 else f"{count / _MIB:.0f} MiB"


def _count(number: float | None) -> str:
    return "unlimited" if number is None else f"{number:,.0f}" if number >= 100_000 else f"{number:.0f}"


def _age(seconds: float) -> str:
    if seconds >= 2 * _DAY_S:
        return f"{seconds / _DAY_S:.0f} days"
    return f"{seconds / _HOUR_S:.0f} hours" if seconds >= 2 * _HOUR_S else f"{seconds / 60:.0f} minutes"
