"""Which rank made the others wait, from what each of them wrote when the run hung.

The watchdog of every rank writes `<run>/hangs/<time>-rank-N.txt`: a header, Python's stacks, and the collectives that
it has begun and not ended. The one to blame is the rank that wrote nothing, since its process was stopped or could not
run Python; else the one that is in no collective while the others are; else the one that is in an earlier one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from glmforge.errors import LaunchError
from glmforge.files import read_text

_FILE = re.compile(r"^\d{8}T\d{6}Z-rank-(\d{5,7})\.txt$")
_COLLECTIVE = re.compile(r"^(.{1,200}) number (\d+) of group (.{0,200}): ", re.MULTILINE)
_SECTION = "== collectives that have not ended =="
_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class HangDump:
    """What one rank was doing.

    Attributes:
        open: collectives that it was in, with their number by group; None if they were not recorded.
        last: its last sign of life, in words.
    """

    rank: int
    world_size: int
    host: str
    step: int | None
    last: str
    open: dict[str, tuple[str, int]] | None


@dataclass(frozen=True)
class Blamed:
    """The rank that others waited for."""

    rank: int
    why: str


def read_dumps(directory: Path, since: datetime) -> list[HangDump]:
    """Those that were written since then, by rank; what cannot be read as one is left out."""
    found: dict[int, HangDump] = {}
    paths = sorted(directory.glob("*-rank-*.txt")) if directory.is_dir() else []
    for path in paths:
        name = _FILE.match(path.name)
        if name is None:
            continue
        try:
            if path.stat().st_mtime < since.timestamp() - 1:
                continue
            dump = parse_dump(read_text(path, error=LaunchError, max_bytes=_MAX_BYTES))
        except (LaunchError, OSError):  # another program's file, or one that a retention took away
            continue
        if dump is not None:
            found[dump.rank] = dump
    return [found[rank] for rank in sorted(found)]


def parse_dump(text: str) -> HangDump | None:
    """None if it is no such report."""
    header = dict(re.findall(r"^([a-z ]{1,60}): (.{0,300})$", text.split("\n== ")[0], re.MULTILINE))
    rank = re.fullmatch(r"(\d+) of (\d+)", header.get("rank", ""))
    if rank is None:
        return None
    step = header.get("steps done", "")
    section = text.partition(_SECTION)[2].partition("\n== ")[0]
    recorded = bool(section.strip()) and "not recorded" not in section
    return HangDump(
        rank=int(rank[1]),
        world_size=int(rank[2]),
        host=header.get("host", ""),
        step=int(step) if step.isdecimal() else None,
        last=header.get("last sign of life", ""),
        open={group: (name, int(number)) for name, number, group in _COLLECTIVE.findall(section)} if recorded else None,
    )


def who_hangs(dumps: Sequence[HangDump]) -> Blamed | None:
    """The rank that the others waited for; None if they do not tell."""
    if not dumps:
        return None
    world_size = max(dump.world_size for dump in dumps)
    silent = sorted(set(range(world_size)) - {dump.rank for dump in dumps})
    if len(silent) == 1 and world_size > 1:
        return Blamed(silent[0], "it alone wrote nothing when the run hung: its process was stopped or blocked")
    known = [dump for dump in dumps if dump.open is not None]
    outside = [dump for dump in known if not dump.open]
    inside = [dump for dump in known if dump.open]
    if len(outside) == 1 and inside:
        group, (name, number) = next(iter((inside[0].open or {}).items()))
        return Blamed(outside[0].rank, f"it is in no collective, and the others wait in {name} {number} of {group}")
    return _behind(inside) or _earlier_step(dumps)


def _behind(inside: Sequence[HangDump]) -> Blamed | None:
    """A rank that is in an earlier collective of a group than all others of it."""
    groups = {group for dump in inside for group in dump.open or {}}
    for group in sorted(groups):
        at = sorted((dump.open[group][1], dump.rank) for dump in inside if dump.open and group in dump.open)
        if len(at) > 1 and at[0][0] < at[1][0]:
            return Blamed(at[0][1], f"it is in collective {at[0][0]} of {group}, and the others are in {at[1][0]}")
    return None


def _earlier_step(dumps: Sequence[HangDump]) -> Blamed | None:
    at = sorted((dump.step, dump.rank) for dump in dumps if dump.step is not None)
    if len(at) > 1 and at[0][0] < at[1][0]:
        return Blamed(at[0][1], f"it had done {at[0][0]} steps, and the others {at[1][0]}")
    return None
