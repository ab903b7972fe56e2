"""Versions: new enough on each node, and the same on all of them; and what a login there gives to a job.

Ranks of different torch, NCCL or glmforge talk different protocols to each other, or compute different numbers; a
different driver or kernel is where a node that is slow or breaks is to be looked for first.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    compare,
    equal_values,
    failed,
    judge,
    passed,
    rule,
    skipped,
    warning,
)  # fmt: skip
from glmforge_ops.health.checks.node import call, last_line, read_text, run

# torch itself is not imported: that takes seconds, and memory on a GPU.
_ASK = r"""
import importlib.metadata, importlib.util, json, pathlib, re, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return None
torch = importlib.util.find_spec("torch")
text = pathlib.Path(torch.origin).with_name("version.py").read_text() if torch and torch.origin else ""
cuda = re.search(r"^cuda\b[^=]*= *'([^']*)'", text, re.MULTILINE)
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], "cuda": cuda.group(1) if cuda else None,
    "packages": {name: version(name) for name in sys.argv[1:]}}))
"""
_IMPORT = "import glmforge, json; print(json.dumps({'file': glmforge.__file__}))"


def versions(cluster: Facts) -> dict[str, Any]:
    """Of the machine, its driver, and what the Python that runs jobs there would import."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', read_text("/etc/os-release") or "", re.MULTILINE))
    smi = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    found: dict[str, Any] = {
        "kernel": read_text("/proc/sys/kernel/osrelease"),
        "os": " ".join(system[key] for key in ("ID", "VERSION_ID") if key in system) or None,
        "glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2] or None,
        "driver": read_text("/sys/module/nvidia/version") or last_line(run(*smi) or "") or None,
    }
    names = ["torch", "glmforge", "nvidia-nccl-cu13", "nvidia-nccl-cu12", *cluster["expected"]]
    names = [name for name in names if re.fullmatch(r"[A-Za-z0-9._-]+", name)]
    status, printed, said = call(cluster["python"], "-c", _ASK, *names, limit_s=15)
    if status != 0 or not printed.strip():
        python = dict.fromkeys(("python", "cuda", "packages", "torch", "nccl", "glmforge", "installed"))
        return found | python | {"runs": said or f"status {status}"}
    told = json.loads(last_line(printed))
    packages = told["packages"]
    torch, nccl = packages["torch"], packages["nvidia-nccl-cu13"] or packages["nvidia-nccl-cu12"]
    return found | told | {
        "runs": "runs", "nccl": nccl, "glmforge": packages["glmforge"],
        "torch": torch and torch.partition("+")[0],  # which CUDA it is built for is compared as CUDA
        "installed": " and ".join(name for name in ("torch", "glmforge") if packages[name]) or "neither",
    }  # fmt: skip


def login(cluster: Facts) -> dict[str, Any]:
    """What a job finds on a node: whether glmforge can be imported, and the variables of a login."""
    status, _, said = call("sh", "-lc", 'exec "$1" -c "$2"', "sh", cluster["python"], _IMPORT, limit_s=18)
    listed = run("sh", "-lc", "env -0", limit_s=18)
    pairs = [entry.partition("=") for entry in (listed or "").split("\0")]
    variables = {name: value[:1000] for name, _, value in pairs if _may_leave(name)}
    absent = status in (126, 127) or "No module named 'glmforge'" in said  # versions.installed tells that
    return {"imports": "yes" if status == 0 else None if absent else said or f"status {status}",
            "variables": None if listed is None else variables}  # fmt: skip


def _may_leave(name: str) -> bool:
    """Nothing else leaves the node: variables hold secrets."""
    secret = any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSW"))
    prefixes = ("NCCL_", "GLOO_", "CUDA_", "CUDNN_", "TORCH_", "PYTORCH_", "NVIDIA_", "OMP_", "MKL_", "UCX_", "TRITON_")
    others = ("LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TRANSFORMERS_CACHE", "TOKENIZERS_PARALLELISM")
    return not secret and (name.startswith(prefixes) or name in others)


rule("versions.python-runs", "quick", versions, "the Python that runs jobs", "runs", want="runs", bad=failed,
     fix="install it, or set 'python' in cluster.yaml to what runs jobs")  # fmt: skip


def _minimum(name: str) -> None:
    """Limits are written as major * 100 + minor, since 2.2 and 2.20 are the same number."""

    @judge(f"versions.{name}-minimum", "standard", versions, f"{_FIX[name][0]}: new enough")
    def minimum(facts: Facts, context: Context) -> Outcome:
        found, least = facts[name], int(context.limit(f"minimum-{name}"))
        if found is None or (name in ("driver", "cuda", "nccl") and context.cluster.gpus_per_node == 0):
            return skipped("was not found" if found is None else "the cluster has no GPUs")
        major, minor = [int(number) for number in re.findall(r"\d{1,6}", found + ".0")[:2]]
        needed = f"{least // 100}.{least % 100}"
        is_good = (major, minor) >= (least // 100, least % 100)
        fix = _FIX[name][1].format(expected=f"{needed} or newer")
        return passed(found, f"at least {needed}") if is_good else failed(found, f"at least {needed}", fix)


def _equal(name: str) -> None:
    level = "quick" if name in ("torch", "glmforge") else "standard"
    about = f"{_FIX[name][0]}: the same on all nodes"

    @compare(f"versions.{name}-equal", level, versions, about, lambda facts, _: facts[name], "was not found")
    def equal(values: dict[str, str], context: Context) -> dict[str, Outcome]:
        expected = context.cluster.expected.get(name)
        expected = expected.partition("+")[0] if expected is not None and name == "torch" else expected
        return equal_values(values, _FIX[name][1], expected)


_FIX = {
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
for _name in _FIX:
    if _name not in ("glmforge", "os"):
        _minimum(_name)
    if _name != "glibc":
        _equal(_name)


@compare("versions.installed", "quick", versions, "torch and glmforge are on all nodes if on any",
         lambda facts, _: facts["installed"], "its Python does not run")  # fmt: skip
def installed(values: dict[str, str], context: Context) -> dict[str, Outcome]:
    """Also of a single node."""
    known = [value for value in values.values() if value in ("torch", "glmforge", "torch and glmforge")]
    wanted, fix = max(known, key=len, default="neither"), f"install them into '{context.cluster.python}'"
    if wanted == "neither":
        return dict.fromkeys(values, skipped("torch and glmforge are on no node", fix))
    return equal_values(values, fix, expected=wanted)


@judge("versions.expected", "standard", versions, "packages of 'expected'")
def as_expected(facts: Facts, context: Context) -> Outcome:
    """Other packages that cluster.yaml names."""
    wanted = {name: version for name, version in context.cluster.expected.items() if name not in _FIX}
    if not wanted or facts["packages"] is None:
        return skipped("its Python does not run" if wanted else "cluster.yaml expects no other packages")
    wrong = {name: facts["packages"].get(name) for name in wanted if facts["packages"].get(name) != wanted[name]}
    needed = ", ".join(f"{name}=={wanted[name]}" for name in wrong)
    found = ", ".join(f"{name} {version or 'not installed'}" for name, version in wrong.items())
    return failed(found, needed, f"install {needed}") if wrong else passed(f"{len(wanted)} packages")


rule("environment.import", "standard", login, "glmforge can be imported by jobs' Python", "imports", want="yes",
     bad=failed, absent="see versions.installed and versions.python-runs",
     fix="try it there with 'python' of cluster.yaml: -c 'import glmforge'; install it again")  # fmt: skip


@judge("environment.variables", "standard", login, "no harmful variables in a login")
def variables(facts: Facts, context: Context) -> Outcome:
    """The linter's verdict on what a login shell exports."""
    from glmforge_ops.environment.lint import lint_environment

    if facts["variables"] is None:
        return skipped("its login shell does not answer")
    findings = lint_environment({str(name): str(value) for name, value in facts["variables"].items()})
    bad = [finding for finding in findings if finding.severity == "error"] or findings
    if not bad:
        return passed(f"{len(facts['variables'])} variables")
    value = f"{bad[0].name}={bad[0].value}: {bad[0].problem}" + (f" (and {len(bad) - 1} more)" if bad[1:] else "")
    threshold = "nothing that harms a job"
    return (failed if bad[0].severity == "error" else warning)(value, threshold, bad[0].instead)
