"""Data that every node reads: there, readable, and the same everywhere.

A node with other data trains on: its ranks see other tokens than the run's record says. Modification times say
nothing, since every way of copying treats them in another way.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from typing import Any

from glmforge_ops.health.checks.check import Context, Facts, Outcome, compare, failed, passed, rule, skipped

_BLOCK, _CHUNK = 64 << 10, 4 << 20
_EQUAL, _ABSENT = "equal on all nodes", "no data_paths are given, or no such files: see data.there"


def there(cluster: Facts) -> dict[str, Any]:
    """Whether each path holds files, and this user can read them."""
    for path in cluster["data_paths"]:
        files = [file for _, file in list_files(path)]
        unreadable = [file for file in [path, *files] if os.path.exists(file) and not os.access(file, os.R_OK)]
        if unreadable or not files:
            return {"state": f"{unreadable[0]} is not readable" if unreadable else f"{path} holds no files"}
    return {"state": "readable" if cluster["data_paths"] else None}


def samples(cluster: Facts) -> dict[str, Any]:
    """Size and hash of the first, middle and last block of each file, as far as twelve seconds go."""
    return _survey(cluster, 12.0, lambda size: [0, max(0, size // 2 - _BLOCK // 2), max(0, size - _BLOCK)], _BLOCK)


def whole(cluster: Facts) -> dict[str, Any]:
    """Size and hash of all of each file, as far as ten minutes go."""
    return _survey(cluster, 600.0, lambda size: range(0, size, _CHUNK), _CHUNK)


def _survey(cluster: Facts, limit_s: float, starts: Any, block: int) -> dict[str, Any]:
    """ "SIZE HASH" of each file, with - for a hash that there was no time for."""
    deadline, found = time.monotonic() + limit_s, []
    for path in cluster["data_paths"]:
        for name, file in list_files(path)[:20_000]:
            try:
                size, digest = os.path.getsize(file), hashlib.blake2b(digest_size=8)
                with open(file, "rb", buffering=0) as stream:
                    for start in starts(size):
                        stream.seek(start)
                        digest.update(stream.read(block))
                        if time.monotonic() > deadline:
                            break
            except OSError:  # data.there reports it
                continue
            found.append([f"{path}/{name}", f"{size} {'-' if time.monotonic() > deadline else digest.hexdigest()}"])
    return {"files": found}


def list_files(path: str) -> list[tuple[str, str]]:
    """All files in a directory by their names within it, in order; a prefix of token shards means .bin and .idx."""
    if os.path.isfile(path):
        return [(os.path.basename(path), path)]
    if not os.path.isdir(path):
        return [(os.path.basename(path) + end, path + end) for end in (".bin", ".idx") if os.path.exists(path + end)]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted((os.path.relpath(file, path), file) for file in files if os.path.isfile(file))


rule("data.there", "quick", there, "data_paths hold files that can be read", "state", want="readable", bad=failed,
     fix="mount it, or copy it there (glmforge cluster stage), and let this user read it: chmod -R a+rX",
     absent="no data_paths are given")  # fmt: skip


def _files(facts: Facts, context: Context) -> dict[str, str] | None:
    return {f"{name}": f"{found}" for name, found in facts["files"]} or None


def equal(values: dict[str, dict[str, str]], context: Context) -> dict[str, Outcome]:
    """Against what most nodes have of each file that at least half of them have."""
    if len(values) < 2:
        return dict.fromkeys(values, skipped("takes two nodes that have the data"))
    counts: dict[str, Counter[str]] = {}
    for name, found in (file for files in values.values() for file in files.items()):
        counts.setdefault(name, Counter())[found] += 1
    usual = {name: _most(found) for name, found in counts.items() if 2 * found.total() >= len(values)}
    fix = "copy it again, and compare checksums: glmforge cluster stage"

    def judge_files(files: dict[str, str]) -> Outcome:
        for name, found in usual.items():
            if name not in files:
                return failed(f"{name} is missing", _EQUAL, fix)
            if found is None or not _agree(files[name], found):
                return failed(f"{name} differs", _EQUAL, fix)
        extra = next((name for name in files if name not in usual), None)
        if extra is not None:
            return failed(f"{extra} is on few nodes only", _EQUAL, "remove it, or copy it to the others")
        num_hashed = sum(not found.endswith("-") for found in files.values())
        return passed(f"{len(files):,} files, of {num_hashed:,} the content", _EQUAL)

    return {host: judge_files(files) for host, files in values.items()}


def _most(found: Counter[str]) -> str | None:
    """What most nodes have, where hashes are known; None without a majority."""
    ranked = [each for each in found.most_common() if not each[0].endswith("-")] or found.most_common()
    return None if len(ranked) > 1 and ranked[0][1] == ranked[1][1] else ranked[0][0]


def _agree(found: str, usual: str) -> bool:
    """Sizes are equal, and hashes where both are known."""
    (size, _, digest), (usual_size, _, usual_digest) = found.partition(" "), usual.partition(" ")
    return size == usual_size and (digest == usual_digest or "-" in (digest, usual_digest))


compare("data.equal", "standard", samples, "data_paths are the same on all nodes, by samples", _files, equal, _ABSENT,
        dict)  # fmt: skip
compare("data.whole", "thorough", whole, "data_paths are the same on all nodes, byte for byte", _files, equal, _ABSENT,
        dict)  # fmt: skip
