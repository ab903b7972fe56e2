"""Data that every node reads: names, sizes, and a hash of blocks of each file."""

import os
import time

_BLOCK = 64 << 10
_MAX_FILES = 5000
_BUDGET_S = 12


def gather(cluster: dict) -> dict:
    return {"paths": [_survey(path) for path in cluster["data_paths"]]}


def _survey(path: str) -> dict:
    """Files by their name within `path`: "SIZE HASH", with - for what there was no time to read."""
    found: dict = {"path": path, "files": {}, "more": 0}
    deadline = time.monotonic() + _BUDGET_S
    for name, file in list_files(path):
        if len(found["files"]) == _MAX_FILES:
            found["more"] += 1
            continue
        try:
            size = os.path.getsize(file)
            sample = sample_hash(file, size) if time.monotonic() < deadline else "-"
        except OSError:
            continue  # data.there tells
        found["files"][name] = f"{size} {sample}"
    return found


def list_files(path: str) -> "list[tuple[str, str]]":
    """All files in a directory by their names within it, in order; a prefix of token shards means .bin and .idx."""
    if os.path.isfile(path):
        return [(os.path.basename(path), path)]
    if not os.path.isdir(path):
        return [(os.path.basename(path) + end, path + end) for end in (".bin", ".idx") if os.path.exists(path + end)]
    files = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                files.append((os.path.relpath(file, path), file))
    return files


def sample_hash(file: str, size: int) -> str:
    """Of the first, the middle and the last block."""
    import hashlib  # takes longer than the other checks that this module is for

    digest = hashlib.blake2b(digest_size=8)
    with open(file, "rb", buffering=0) as stream:
        for start in sorted({0, max(0, size // 2 - _BLOCK // 2), max(0, size - _BLOCK)}):
            stream.seek(start)
            digest.update(stream.read(_BLOCK))
    return digest.hexdigest()
