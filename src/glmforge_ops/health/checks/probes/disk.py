"""The fast disk of a node's own."""

from glmforge_ops.health.checks.probes.paths import describe, try_writing


def gather(cluster: dict) -> dict:
    path = cluster["local_path"]
    if path is None:
        return {"path": None}
    found = describe(path)
    if found["kind"] == "directory":
        found.update(try_writing(path))
    return found
