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
    deadline = time.monotonic() + 12.0
    return {"files": [[f"{path}/{name}", found] for path in cluster["data_paths"]
                      for name, file in list_files(path)[:5000] if (found := _sample(file, deadline))]}  # fmt: skip


def whole(cluster: Facts) -> dict[str, Any]:
    """Hash of all of each file, as far as fifteen seconds go; all nodes go in the same order."""
    deadline = time.monotonic() + 15.0
    return {"files": [[f"{path}/{name}", found] for path in cluster["data_paths"]
                      for name, file in list_files(path) if (found := _hash(file, deadline))]}  # fmt: skip


def list_files(path: str) -> list[tuple[str, str]]:
    """All files in a directory by their names within it, in order; a prefix of token shards means .bin and .idx."""
    if os.path.isfile(path):
        return [(os.path.basename(path), path)]
    if not os.path.isdir(path):
        return [(os.path.basename(path) + end, path + end) for end in (".bin", ".idx") if os.path.exists(path + end)]
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted((os.path.relpath(file, path), file) for file in files if os.path.isfile(file))


def _sample(file: str, deadline: float) -> str | None:
    """ "SIZE HASH", with - for what there was no time to read."""
    try:
        size, digest = os.path.getsize(file), hashlib.blake2b(digest_size=8)
        if time.monotonic() > deadline:
            return f"{size} -"
        with open(file, "rb", buffering=0) as stream:
            for start in sorted({0, max(0, size // 2 - _BLOCK // 2), max(0, size - _BLOCK)}):
                stream.seek(start)
                digest.update(stream.read(_BLOCK))
    except OSError:
        return None  # data.there tells
    return f"{size} {digest.hexdigest()}"


def _hash(file: str, deadline: float) -> str | None:
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(file, "rb", buffering=0) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if time.monotonic() > deadline:
                    return None
    except OSError:
        return None
    return digest.hexdigest()


rule("data.there", "quick", there, "data_paths hold files that can be read", "state", want="readable", bad=failed,
     fix="mount it, or copy it there (glmforge cluster stage), and let this user read it: chmod -R a+rX",
     absent="no data_paths are given")  # fmt: skip


def _survey(facts: Facts, context: Context) -> dict[str, str] | None:
    return {f"{name}": f"{found}" for name, found in facts["files"]} or None


@compare("data.equal", "standard", samples, "data_paths are the same on all nodes, by samples", _survey, _ABSENT, dict)
def equal(values: dict[str, dict[str, str]], context: Context) -> dict[str, Outcome]:
    """Names, sizes and some blocks of each file."""
    return _compare(values, "names, sizes and blocks of {:,} files", is_complete=True)


@compare("data.whole", "thorough", whole, "data_paths are the same on all nodes, byte for byte", _survey, _ABSENT, dict)
def equal_bytes(values: dict[str, dict[str, str]], context: Context) -> dict[str, Outcome]:
    """Every byte, of as many files as every node could read in its time."""
    return _compare(values, "every byte of {:,} files", is_complete=False)


def _compare(surveys: dict[str, dict[str, str]], words: str, is_complete: bool) -> dict[str, Outcome]:
    """Against what most nodes have of each file that at least half of them have."""
    if len(surveys) < 2:
        return dict.fromkeys(surveys, skipped("takes two nodes that have the data"))
    counts: dict[str, Counter[str]] = {}
    for name, found in (file for survey in surveys.values() for file in survey.items()):
        counts.setdefault(name, Counter())[found] += 1
    usual = {name: [*found.most_common(2), ("", 0)] for name, found in counts.items()
             if not is_complete or 2 * found.total() >= len(surveys)}  # fmt: skip
    fix = "copy it again, and compare checksums: glmforge cluster stage"

    def judge_survey(survey: dict[str, str]) -> Outcome:
        for name, ranked in usual.items():
            if name not in survey and is_complete:
                return failed(f"{name} is missing", _EQUAL, fix)
            is_tied = ranked[0][1] == ranked[1][1]
            if name in survey and (is_tied or not _agree(survey[name], ranked[0][0])):
                return failed(f"{name} differs", _EQUAL, fix)
        extra = next((name for name in survey if name not in usual), None)
        if extra is not None:
            return failed(f"{extra} is on few nodes only", _EQUAL, "remove it, or copy it to the others")
        return passed(words.format(len(usual)), _EQUAL)

    return {host: judge_survey(survey) for host, survey in surveys.items()}


def _agree(found: str, usual: str) -> bool:
    """A dash stands for a hash that there was no time for."""
    (size, _, digest), (usual_size, _, usual_digest) = found.partition(" "), usual.partition(" ")
    return size == usual_size and (digest == usual_digest or "-" in (digest, usual_digest))
