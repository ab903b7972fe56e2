"""Do all nodes see the same Hugging Face directory? Asked before anything is loaded.

A node whose copy is incomplete, or of another revision, would otherwise end the run after minutes of reading, or not at
all: weights of two revisions have the same names, shapes and sizes. So one process of each node takes a fingerprint of
every file that will be read: size, first bytes (a header, an index) and samples of the rest. That is about 300 kB of
each, so of 220 GB in 47 files 15 MB.
"""

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from glmforge.checkpoint.collective import all_gather, broadcast, run_each
from glmforge.checkpoint.convert.hf_files import files_to_read
from glmforge.checkpoint.format.wording import list_some
from glmforge.errors import CheckpointError
from glmforge.files import kind_of, shown
from glmforge.runtime.launch import LaunchEnvironment

_HEAD_BYTES = 256 << 10
_SAMPLE_BYTES = 4 << 10
_NUM_SAMPLES = 15
_NAMED_NODES = 3  # an error names this many nodes and counts the others


class FileSeen(NamedTuple):
    """Size, and a digest of the first bytes and of samples of the rest."""

    num_bytes: int
    digest: bytes


class _Node(NamedTuple):
    host: str
    rank: int
    num_files: int
    digest: bytes


def check_same_files(directory: Path) -> None:
    """Compare what the nodes see of `directory`. All ranks call this together.

    Raises `CheckpointError` on all ranks, naming each node that differs from most others, and in what.
    """
    looks = LaunchEnvironment.read().is_first_of_node
    seen = run_each(lambda: files_seen(directory) if looks else None)
    own = None if seen is None else (socket.gethostname(), len(seen), hashlib.sha256(repr(seen).encode()).digest())
    nodes = [_Node(found[0], rank, *found[1:]) for rank, found in enumerate(all_gather(own)) if found is not None]
    count = Counter(node.digest for node in nodes)
    usual = max(nodes, key=lambda node: (count[node.digest], node.num_files, -node.rank))
    differing = [node for node in nodes if node.digest != usual.digest]
    if not differing:
        return
    expected = broadcast(seen, usual.rank)
    assert expected is not None
    parts = []
    for node in differing[:_NAMED_NODES]:
        found = broadcast(seen, node.rank)
        assert found is not None
        parts.append(f"node {node.host} (rank {node.rank}) {_difference(found, expected)}")
    others = len(differing) - len(parts)
    raise CheckpointError(
        f"{shown(directory)}: the nodes do not see the same files: {'; '.join(parts)}"
        f"{f'; and {others} more nodes' if others else ''}; compared with node {usual.host} (rank {usual.rank}). "
        "Nothing was loaded; copy the directory to that node again"
    )


def files_seen(directory: Path) -> dict[str, FileSeen]:
    """Name -> what is seen of it, of the files that loading reads and that are there, in order.

    Raises `CheckpointError` for an invalid index, and for a file that cannot be read.
    """
    there = (path for path in files_to_read(directory) if kind_of(path, error=CheckpointError) == "file")
    return {path.relative_to(directory).as_posix(): _fingerprint(path) for path in there}


def _fingerprint(path: Path) -> FileSeen:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(_HEAD_BYTES))
            for number in range(_NUM_SAMPLES if size > _HEAD_BYTES else 0):
                file.seek(_HEAD_BYTES + (size - _HEAD_BYTES) * number // _NUM_SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    return FileSeen(size, digest.digest())


def _difference(found: Mapping[str, FileSeen], expected: Mapping[str, FileSeen]) -> str:
    """What a node has otherwise; the two do differ."""
    if not found:
        return "has no such files"
    parts = []
    if lacking := [name for name in expected if name not in found]:
        parts.append(f"lacks {list_some(lacking)}")
    if surplus := [name for name in found if name not in expected]:
        parts.append(f"has {list_some(surplus)} besides")
    both = [name for name in expected if name in found and found[name] != expected[name]]
    if sized := [name for name in both if found[name].num_bytes != expected[name].num_bytes]:
        sizes = [f"{n} of {found[n].num_bytes:,} bytes instead of {expected[n].num_bytes:,}" for n in sized]
        parts.append(f"has {list_some(sizes)}")
    if others := [name for name in both if name not in sized]:
        parts.append(f"has different contents in {list_some(others)}; another revision, or damaged")
    return " and ".join(parts)
