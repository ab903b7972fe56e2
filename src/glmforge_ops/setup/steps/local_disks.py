"""Step 2: directories on each node's own fast disk, for data, checkpoints and caches."""

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from glmforge.files import shown
from glmforge_ops.setup.change import Change
from glmforge_ops.setup.plan import Context, Step, problems_by_text

NAMES = ("data", "checkpoints", "cache", "tmp")
_MODE = 0o750


def local_disks(context: Context) -> Step:
    step = Step("Directories on local disks")
    given = context.wanted.cluster.local_path
    if given is None:
        step.notes.append("none: --nvme-path says where")
        return step
    path = PurePosixPath(given)
    wrong = {host: said for host, facts in context.facts.items() if (said := _judge(facts, path))}
    step.problems += problems_by_text(wrong)
    for host in context.wanted.names:
        if host not in wrong and (context.offline or host in context.facts):
            root = path / "glmforge"
            step.wanted += [Change(host, "directory", str(each), _MODE) for each in (root, *(root / n for n in NAMES))]
    return step


def _judge(facts: Mapping[str, Any], path: PurePosixPath) -> tuple[str, str] | None:
    """What is wrong with the path, and the mend."""
    found = facts["paths"][str(path)]
    name = shown(path)
    if found["kind"] == "absent":
        return f"{name} is not there", "mount the disk, or correct --nvme-path"
    if found["kind"] != "directory":
        return f"{name} is a file", "give --nvme-path the directory where the disk is mounted"
    if found["network"]:
        return f"{name} is on {found['type']} ({shown(found['source'])}), not a disk of its own", "correct --nvme-path"
    inside = facts["paths"][str(path / "glmforge")]
    if not found["writable"] and not (inside["kind"] == "directory" and inside["writable"]):
        root = shlex.quote(str(path / "glmforge"))
        return f"{name} is not this account's to write to", f"have root run: install -d -o ACCOUNT -m 0750 {root}"
    return None
