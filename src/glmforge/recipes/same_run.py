"""What must be the same on all nodes of a run: the program, its settings, and the data.

Program and settings are compared before the ranks communicate (`glmforge.runtime.meeting`), since ranks that differ in
them wait for collectives that never come. Data is compared once each node has opened its own. A Hugging Face directory
compares itself (`glmforge.checkpoint.convert.same_files`).
"""

import hashlib
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

import glmforge
from glmforge.checkpoint.collective import all_gather
from glmforge.config.schema import RunConfig
from glmforge.errors import DataError
from glmforge.observe.environment import source_digest
from glmforge.runtime.launch import LaunchEnvironment

_NAMED = 3


def what_must_agree(config: RunConfig) -> dict[str, str]:
    """Names and values of the program and of all settings but paths, whose files may lie elsewhere on another node."""
    sources = source_digest(Path(glmforge.__file__).parent)
    program = {"glmforge": f"{glmforge.__version__} with sources {sources[:12]}", "torch": torch.__version__}
    return program | _settings(config.model_dump(), "")


def _settings(value: Any, name: str) -> dict[str, str]:
    if isinstance(value, Mapping):
        inner = [(f"{name}.{key}" if name else f"{key}", one) for key, one in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        inner = [(f"{name}.{index}", one) for index, one in enumerate(value)]
    else:
        return {} if isinstance(value, Path) else {name: str(value)}
    return {key: text for part, one in inner for key, text in _settings(one, part).items()}


class _Node(NamedTuple):
    host: str
    rank: int
    seen: dict[str, str]


def check_same_data(look: Callable[[], Mapping[str, object]]) -> None:
    """Compare what the nodes have under the names of settings. All ranks call this together; the first of each node
    looks, if there are several.

    Raises `DataError` on all ranks, naming each node that differs from most others, and in what.
    """
    launch = LaunchEnvironment.read()
    if launch.num_nodes == 1:
        return
    seen = None
    if launch.is_first_of_node:
        digests = {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in look().items()}
        seen = socket.gethostname(), digests
    gathered = all_gather(seen)
    nodes = [_Node(found[0], rank, found[1]) for rank, found in enumerate(gathered) if found is not None]
    count = Counter(repr(node.seen) for node in nodes)
    usual = max(nodes, key=lambda node: (count[repr(node.seen)], -node.rank))
    differing = [node for node in nodes if node.seen != usual.seen]
    if not differing:
        return
    parts = []
    for node in differing[:_NAMED]:
        names = [name for name in {**usual.seen, **node.seen} if usual.seen.get(name) != node.seen.get(name)]
        parts.append(f"node {node.host} (rank {node.rank}) has different contents in {', '.join(names)}")
    more = f"; and {len(differing) - len(parts)} more nodes" if len(differing) > len(parts) else ""
    raise DataError(
        f"data: the nodes do not see the same data: {'; '.join(parts)}{more}; compared with node {usual.host} (rank "
        f"{usual.rank}). Nothing was trained; copy the files to that node again"
    )
