"""Names of machines: as an option gives them, or one per line of a hostfile as mpirun and DeepSpeed read it.

    node001 slots=8            # one machine with eight places for ranks
    node[002-128] slots=8      # a range, as Slurm and ClusterShell write it

Names come from files and go into command lines, so nothing but the characters of host names passes. ClusterShell's
`NodeSet` expands ranges, sorted; names and ranges stay in the order given, and the first machine is the master. A
machine that stands twice is an error: what a user means by it (more slots, a slip) differs from one reader of such
files to the next.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import read_text, shown

MAX_HOSTS = 100_000
LOCAL = ("localhost", "127.0.0.1")
"""Names that mean this machine, which is reached without ssh."""

_MAX_BYTES = 16 << 20
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.:%-]*", re.ASCII)
_MAX_NAME = 255
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_SLOTS = re.compile(r"slots=(\d{1,6})", re.ASCII)


@dataclass(frozen=True)
class HostLine:
    """A machine of a hostfile; `slots` is the number of ranks that it takes, None if the file does not say."""

    name: str
    slots: int | None = None


def parse_hosts(names: str, origin: str = "--hosts") -> list[str]:
    """Names separated by commas, with ranges: `node[001-004,7],login`. Raises `HostError`."""
    return _without_duplicates(expand_hosts(split_names(names), origin), origin)


def read_hostfile(file: Path) -> list[str]:
    """The names of a hostfile. Raises `HostError`."""
    return [line.name for line in read_host_lines(file)]


def read_host_lines(file: Path) -> list[HostLine]:
    """The machines of a hostfile, ranges expanded. Raises `HostError`, naming file and line."""
    lines: list[HostLine] = []
    first_at: dict[str, int] = {}
    for number, text in enumerate(read_text(file, error=HostError, max_bytes=_MAX_BYTES).splitlines(), start=1):
        origin = f"{shown(file)}:{number}"
        for line in _parse_line(text.split("#")[0].split(), origin):
            if line.name in first_at:
                raise HostError(
                    f"{origin}: {line.name} stands in line {first_at[line.name]} already; name each host once, with "
                    "slots=N for the number of its ranks"
                )
            first_at[line.name] = number
            lines.append(line)
            if len(lines) > MAX_HOSTS:
                raise HostError(f"{origin}: more than {MAX_HOSTS} hosts")
    if not lines:
        raise HostError(f"{shown(file)}: names no host; give a file with one host per line")
    return lines


def expand_hosts(texts: Iterable[str], origin: str) -> list[str]:
    """`node[1-3]` as node1, node2, node3, each checked. Raises `HostError`, naming `origin`."""
    names = [name for text in texts for name in _expand(text, origin)]
    if not names:
        raise HostError(f"{origin}: names no host")
    return names


def _parse_line(words: Sequence[str], origin: str) -> list[HostLine]:
    if not words:
        return []
    slots = None
    for word in words[1:]:
        found = _SLOTS.fullmatch(word)
        if found is None or int(found[1]) == 0:
            raise HostError(
                f"{origin}: {shown(word)} is not understood; write 'NAME slots=8', one host or range a line"
            )
        slots = int(found[1])
    return [HostLine(name, slots) for name in _expand(words[0], origin)]


def _expand(text: str, origin: str) -> list[str]:
    sizes = [_size(inside, origin) for inside in _BRACKETS.findall(text)]
    if math.prod(sizes) > MAX_HOSTS:
        raise HostError(f"{origin}: {shown(text)} means more than {MAX_HOSTS} hosts")
    if not _NAME.fullmatch(_BRACKETS.sub("1", text)) or len(text) > _MAX_NAME:
        raise HostError(
            f"{origin}: {shown(text)} is not the name of a host; write names or ranges such as node[001-128]"
        )
    if not sizes:
        return [text]
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException  # takes .1 s; most lists have no range

    try:
        names = list(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise HostError(f"{origin}: {shown(text)}: {shown(error)}; write ranges as in node[001-128,200]") from None
    if len(names) != math.prod(sizes):
        raise HostError(f"{origin}: {shown(text)} names a host twice; name each host once")
    return names


def _size(inside: str, origin: str) -> int:
    """How many numbers a bracket holds, before anything expands it: `001-003,7` has 4."""
    size = 0
    for part in inside.split(","):
        found = _RANGE.fullmatch(part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise HostError(f"{origin}: [{shown(inside)}] is not a range of numbers; write it as in node[001-128,200]")
        size += int(found[2] or found[1]) - int(found[1]) + 1
    return size


def split_names(names: str) -> list[str]:
    """Names and ranges of a list, which commas outside brackets separate; not yet checked."""
    return [name.strip() for name in re.split(r",(?![^\[]*\])", names) if name.strip()]


def _without_duplicates(names: list[str], origin: str) -> list[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise HostError(f"{origin}: {name} is named twice; name each host once")
        seen.add(name)
    return names
