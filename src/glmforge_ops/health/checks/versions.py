"""Versions: new enough on each node, and the same on all of them.

Ranks of different torch, NCCL or glmforge talk different protocols to each other, or compute different numbers; a
different driver or kernel is where a node that is slow or breaks is to be looked for first.
"""

import re
from collections.abc import Callable, Mapping

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.equal import compare_facts, compare_values
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped

_Read = Callable[[Facts], str | None]
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def _fact(name: str) -> _Read:
    return lambda facts: facts.text(name)


def _package(name: str) -> _Read:
    def read(facts: Facts) -> str | None:
        packages = facts.inner("packages")
        return None if packages is None else packages.text(name)

    return read


def _nccl(facts: Facts) -> str | None:
    return next((found for name in _NCCL if (found := _package(name)(facts)) is not None), None)


def _without_build(read: _Read) -> _Read:
    """2.11.0 of "2.11.0+cu128": which CUDA it is built for is compared as CUDA."""

    def plain(facts: Facts) -> str | None:
        found = read(facts)
        return None if found is None else found.partition("+")[0]

    return plain


_READ: dict[str, _Read] = {
    "driver": _fact("driver"),
    "cuda": _fact("torch_cuda"),
    "nccl": _nccl,
    "torch": _without_build(_package("torch")),
    "glmforge": _package("glmforge"),
    "python": _fact("python"),
    "kernel": _fact("kernel"),
    "glibc": _fact("glibc"),
    "os": _fact("os"),
}
_ABOUT = {
    "driver": ("NVIDIA's driver", "install the driver {expected}"),
    "cuda": ("the CUDA that torch is built for", "install a torch that is built for CUDA {expected}"),
    "nccl": ("NCCL", "install the torch of the other nodes, whose NCCL is {expected}"),
    "torch": ("torch", "install torch {expected}"),
    "glmforge": ("glmforge", "install glmforge {expected}"),
    "python": ("Python", "run jobs with Python {expected}: 'python' in cluster.yaml"),
    "kernel": ("Linux", "install the kernel {expected}, and reboot"),
    "glibc": ("glibc", "use an operating system with glibc {expected}"),
    "os": ("the operating system", "install {expected}"),
}
_ON_GPUS = ("driver", "cuda", "nccl")


def python_runs(facts: Facts, context: Context) -> Outcome:
    """The Python that is to run jobs starts."""
    error, version = facts.text("python_error"), facts.text("python")
    if error is not None or version is None:
        command = context.cluster.python
        mend = f"install it, or set 'python' in cluster.yaml to what runs jobs (now '{command}')"
        return failed(error or "it tells no version", f"'{command}' runs", mend)
    return passed(version, f"'{context.cluster.python}' runs")


def _minimum(name: str) -> Callable[[Facts, Context], Outcome]:
    """New enough; limits are written as major * 100 + minor, since 2.2 and 2.20 are the same number."""
    about, mend = _ABOUT[name]

    def judge(facts: Facts, context: Context) -> Outcome:
        if name in _ON_GPUS and context.cluster.gpus_per_node == 0:
            return skipped("the cluster has no GPUs")
        found = _READ[name](facts)
        if found is None:
            return skipped(f"{about} was not found")
        least = int(context.thresholds.get(f"minimum-{name}").value)
        needed = f"{least // 100}.{least % 100}"
        threshold = f"at least {needed}"
        numbers = [int(number) for number in re.findall(r"\d{1,6}", found)[:2]]
        if not numbers:
            raise FactError(f"{found!r} is no version of {about}")
        if tuple(numbers) < (least // 100, least % 100)[: len(numbers)]:
            return failed(found, threshold, mend.format(expected=f"{needed} or newer"))
        return passed(found, threshold)

    return judge


def _equal(name: str) -> Callable[[Mapping[str, Facts], Context], Mapping[str, Outcome]]:
    about, mend = _ABOUT[name]

    def compare(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
        expected = context.cluster.expected.get(name)
        if name == "torch" and expected is not None:
            expected = expected.partition("+")[0]
        return compare_facts(nodes, _READ[name], about, mend, expected, absent=f"{about} was not found")

    return compare


def installed(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """torch and glmforge are there on every node if they are on any."""
    names = ("torch", "glmforge")
    found: dict[str, str] = {}
    outcomes: dict[str, Outcome] = {}
    for host, facts in nodes.items():
        try:
            if facts.inner("packages") is None:
                outcomes[host] = skipped("its Python does not run")
            else:
                found[host] = " and ".join(name for name in names if _READ[name](facts)) or "neither"
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
    wanted = max(found.values(), key=len, default="")
    mend = f"install them into '{context.cluster.python}'"
    if found and wanted == "neither":
        return outcomes | dict.fromkeys(found, skipped("torch and glmforge are on no node", mend))
    return outcomes | compare_values(found, "what is installed", mend, expected=wanted)


def as_expected(nodes: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Other packages that `expected` in cluster.yaml names."""
    wanted = {name: version for name, version in context.cluster.expected.items() if name not in _READ}
    outcomes: dict[str, Outcome] = {}
    for host, facts in nodes.items():
        try:
            if facts.inner("packages") is None:
                outcomes[host] = skipped("its Python does not run")
                continue
            found = {name: _package(name)(facts) or "not installed" for name in wanted}
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "look at what its probe answers")
            continue
        wrong = [name for name, version in found.items() if version != wanted[name]]
        if not wanted:
            outcomes[host] = skipped("cluster.yaml expects no other packages")
        elif wrong:
            value = ", ".join(f"{name} {found[name]}" for name in wrong)
            needed = ", ".join(f"{name}=={wanted[name]}" for name in wrong)
            outcomes[host] = failed(value, needed, f"install {needed}")
        else:
            outcomes[host] = passed(f"{len(wanted)} packages", "as cluster.yaml says")
    return outcomes


def _checks() -> list[Check]:
    quick, standard = Level.QUICK, Level.STANDARD
    checks = [Check("versions.python-runs", "the Python that runs jobs", quick, "versions", judge=python_runs)]
    for name in ("driver", "cuda", "nccl", "torch", "python", "kernel", "glibc"):
        about = f"{_ABOUT[name][0]}: new enough"
        checks.append(Check(f"versions.{name}-minimum", about, standard, "versions", judge=_minimum(name)))
    for name in ("driver", "cuda", "nccl", "torch", "glmforge", "python", "kernel", "os"):
        level = quick if name in ("torch", "glmforge") else standard
        about = f"{_ABOUT[name][0]}: the same on all nodes"
        checks.append(Check(f"versions.{name}-equal", about, level, "versions", compare=_equal(name)))
    about = "torch and glmforge are on all nodes if on any"
    checks.append(Check("versions.installed", about, quick, "versions", compare=installed))
    checks.append(Check("versions.expected", "packages of 'expected'", standard, "versions", compare=as_expected))
    return checks


CHECKS = tuple(_checks())
