"""The directory of checkpoints."""

from glmforge_ops.health.checks.probes.paths import describe, try_writing


def gather(cluster: dict) -> dict:
    path = cluster["checkpoint_path"] or cluster["shared_path"]
    if path is None:
        return {"path": None}
    found = describe(path)
    if found["kind"] == "directory":
        found.update(try_writing(path))
    return found
