"""Versions: new enough on each node, and the same on all of them; and what a login there gives to a job.

Ranks of different torch, NCCL or glmforge talk different protocols to each other, or compute different numbers; a
different driver or kernel is the first suspect for a node that is slow or breaks.
"""

from __future__ import annotations

import json
import re
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    compare,
    equal_values,
    failed,
    held,
    passed,
    rule,
    skipped,
    warning,
)
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
_PREFIXES = ("NCCL_", "GLOO_", "CUDA_", "CUDNN_", "TORCH_", "PYTORCH_", "NVIDIA_", "OMP_", "MKL_", "UCX_", "TRITON_",
             "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "TRANSFORMERS_CACHE", "TOKENIZERS_PARALLELISM")  # fmt: skip


def versions(cluster: Facts) -> dict[str, Any]:
    """Of the machine, its driver, and what the Python that runs jobs there would import."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', read_text("/etc/os-release") or "", re.MULTILINE))
    found: dict[str, Any] = {
        "kernel": read_text("/proc/sys/kernel/osrelease"),
        "os": " ".join(system[key] for key in ("ID", "VERSION_ID") if key in system) or None,
        "driver": read_text("/sys/module/nvidia/version"),
    }
    names = ["torch", "glmforge", "nvidia-nccl-cu13", "nvidia-nccl-cu12", *cluster["expected"]]
    names = [name for name in names if re.fullmatch(r"[A-Za-z0-9._-]+", name)]
    status, printed, said = call(cluster["python"], "-c", _ASK, *names, limit_s=15)
    if status != 0 or not printed.strip():
        python = dict.fromkeys(("python", "cuda", "packages", "torch", "nccl", "glmforge", "installed"))
        return found | python | {"runs": said or f"status {status}"}
    of_python = json.loads(last_line(printed))
    packages = of_python["packages"]
    torch, nccl = packages["torch"], packages["nvidia-nccl-cu13"] or packages["nvidia-nccl-cu12"]
    return found | of_python | {
        "runs": "runs", "nccl": nccl, "glmforge": packages["glmforge"],
        "torch": torch and torch.partition("+")[0],  # which CUDA it is built for is compared as CUDA
        "installed": " and ".join(name for name in ("torch", "glmforge") if packages[name]) or "neither",
    }  # fmt: skip


def login(cluster: Facts) -> dict[str, Any]:
    """The variables of a login that concern a job, without secrets."""
    listed = run("sh", "-lc", "env -0", limit_s=18)
    pairs = [entry.partition("=") for entry in (listed or "").split("\0")]
    variables = {name: value[:1000] for name, _, value in pairs
                 if name.startswith(_PREFIXES) and not re.search("KEY|TOKEN|SECRET|PASSW", name)}  # fmt: skip
    return {"variables": None if listed is None else variables}


def _equal(name: str, about: str, fix: str) -> None:
    def equal(values: dict[str, str], context: Context) -> dict[str, Outcome]:
        expected = context.cluster.expected.get(name)
        expected = expected.partition("+")[0] if expected is not None and name == "torch" else expected
        return equal_values(values, fix, expected)

    level, read = "quick" if name in ("torch", "glmforge") else "standard", lambda facts, _: facts[name]
    compare(f"versions.{name}-equal", level, versions, f"{about}: the same on all nodes", read, equal, "was not found")


_FIX = {
    "driver": ("NVIDIA's driver", "install the driver {expected}"),
    "cuda": ("the CUDA that torch is built for", "install a torch that is built for CUDA {expected}"),
    "nccl": ("NCCL", "install the torch of the other nodes, whose NCCL is {expected}"),
    "torch": ("torch", "install torch {expected}"),
    "glmforge": ("glmforge", "install glmforge {expected}"),
    "python": ("Python", "run jobs with Python {expected}: 'python' in cluster.yaml"),
    "kernel": ("Linux", "install the kernel {expected}, and reboot"),
    "os": ("the operating system", "install {expected}"),
}
for _name, _words in _FIX.items():
    _equal(_name, *_words)


def installed(values: dict[str, str], context: Context) -> dict[str, Outcome]:
    """Also of a single node."""
    known = [value for value in values.values() if value in ("torch", "glmforge", "torch and glmforge")]
    fix = f"install them into '{context.cluster.python}'"
    if not known:
        return dict.fromkeys(values, skipped("torch and glmforge are on no node", fix))
    return equal_values(values, fix, expected=max(known, key=len))


def as_expected(facts: Facts, context: Context) -> Outcome:
    """Other packages that cluster.yaml names."""
    wanted = {name: version for name, version in context.cluster.expected.items() if name not in _FIX}
    if not wanted or facts["packages"] is None:
        return skipped("its Python does not run" if wanted else "cluster.yaml expects no other packages")
    wrong = {name: facts["packages"].get(name) for name in wanted if facts["packages"].get(name) != wanted[name]}
    needed = ", ".join(f"{name}=={wanted[name]}" for name in wrong)
    found = ", ".join(f"{name} {version or 'not installed'}" for name, version in wrong.items())
    return failed(found, needed, f"install {needed}") if wrong else passed(f"{len(wanted)} packages")


def variables(facts: Facts, context: Context) -> Outcome:
    """The linter's verdict on what a login shell exports."""
    from glmforge_ops.environment.lint import lint_environment

    if facts["variables"] is None:
        return skipped("its login shell does not answer")
    findings = lint_environment({str(name): str(value) for name, value in facts["variables"].items()})
    if not findings:
        return passed(f"{len(facts['variables'])} variables")
    bad = min(findings, key=lambda finding: finding.severity != "error")
    value = f"{bad.name}={bad.value}: {bad.problem}" + (f" (and {len(findings) - 1} more)" if findings[1:] else "")
    return held(False, value, "nothing that harms a job", bad.instead, failed if bad.severity == "error" else warning)


# fmt: off
rule("versions.python-runs", "quick", versions, "the Python that runs jobs", "runs", want="runs", bad=failed,
     fix="install it, or set 'python' in cluster.yaml to what runs jobs")
compare("versions.installed", "quick", versions, "torch and glmforge are on all nodes if on any",
        lambda facts, _: facts["installed"], installed, "its Python does not run")
rule("versions.expected", "standard", versions, "packages of 'expected'", as_expected)
rule("environment.variables", "standard", login, "no harmful variables in a login", variables)
# fmt: on
