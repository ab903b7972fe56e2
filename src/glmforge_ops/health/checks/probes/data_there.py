"""Whether the data that every node reads is there at all."""

import os

from glmforge_ops.health.checks.probes.data import list_files


def gather(cluster: dict) -> dict:
    return {"paths": [_look(path) for path in cluster["data_paths"]]}


def _look(path: str) -> dict:
    found: dict = {"path": path, "num_files": 0, "unreadable": None}
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        found["unreadable"] = path
    for name, file in list_files(path):
        found["num_files"] += 1
        if not os.access(file, os.R_OK):
            found["unreadable"] = found["unreadable"] or os.path.join(path, name)
    return found
