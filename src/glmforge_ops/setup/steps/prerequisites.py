"""Step 1: what must be there already. Setup installs nothing: that is the image's or the administrator's affair."""

import shutil
from collections.abc import Mapping
from typing import Any

from glmforge.files import shown
from glmforge_ops.setup.plan import Context, Problem, Step, problems_by_text

_HERE = {"slurm": ("sbatch", "srun"), "mpi": ("mpirun",), "manual": ("ssh",)}
_PACKAGES = {
    "slurm": "apt-get install slurm-client",
    "mpi": "apt-get install openmpi-bin",
    "manual": "apt-get install openssh-client",
}


def prerequisites(context: Context) -> Step:
    step = Step("Prerequisites")
    kind, cluster = context.wanted.kind, context.wanted.cluster
    for program in _HERE[kind]:
        if shutil.which(program) is None:
            mend = f"run this where it is, or {_PACKAGES[kind]}"
            step.problems.append(Problem(f"there is no '{program}' on this machine", mend, is_error=False))
    missing = {host: _missing(facts, kind) for host, facts in context.facts.items()}
    step.problems += problems_by_text(
        {host: (text, _mend(text, cluster.python)) for host, text in missing.items() if text}, is_error=False
    )
    good = [host for host in context.facts if not missing[host]]
    if good:
        step.notes.append(f"{len(good)} of {len(context.wanted.names)} nodes have what a job needs")
    return step


def _missing(facts: Mapping[str, Any], kind: str) -> str:
    lacks = [name for name, there in facts["packages"].items() if not there]
    if kind == "mpi" and "mpirun" not in facts["programs"]:
        lacks.append("mpirun")
    error = facts["gpus"].get("error")
    return "; ".join(
        [*([f"lacks {', '.join(lacks)}"] if lacks else []), *([f"nvidia-smi fails: {shown(error)}"] if error else [])]
    )


def _mend(text: str, python: str) -> str:
    mends = []
    if "glmforge" in text or "torch" in text:
        mends.append(f"install glmforge for {python} there, or give 'python' in cluster.yaml")
    if "mpirun" in text:
        mends.append("apt-get install openmpi-bin there")
    if "nvidia-smi" in text:
        mends.append("look at the driver there: dmesg | grep -i nvrm")
    return "; ".join(mends)
