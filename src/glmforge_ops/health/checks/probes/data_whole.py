"""Data that every node reads, byte for byte, as far as the time goes."""

import hashlib
import time

from glmforge_ops.health.checks.probes.data import list_files

_CHUNK = 4 << 20
_SECONDS = 15


def gather(cluster: dict) -> dict:
    deadline = time.monotonic() + _SECONDS
    return {"paths": [_whole(path, deadline) for path in cluster["data_paths"]]}


def _whole(path: str, deadline: float) -> dict:
    """A hash of each file that was read to its end in time; all nodes go in the same order."""
    files = {}
    names = list_files(path)
    for name, file in names:
        try:
            digest = _hash(file, deadline)
        except OSError:
            continue  # data.there tells
        if digest is None:
            break
        files[name] = digest
    return {"path": path, "files": files, "num_files": len(names)}


def _hash(file: str, deadline: float) -> "str | None":
    digest = hashlib.blake2b(digest_size=16)
    with open(file, "rb", buffering=0) as stream:
        while True:
            if time.monotonic() > deadline:
                return None
            chunk = stream.read(_CHUNK)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
