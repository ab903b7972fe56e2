"""Which rank made the others wait, from what each of them wrote when the run hung.

The watchdog of every rank writes `<run>/hangs/<time>-rank-N.txt`: a header, Python's stacks, and the collectives that
it has begun and not ended. The one to blame is the rank that wrote nothing, since its process was stopped or could not
run Python; else the one that is in no collective while the others are; else the one that is in an earlier one, or at an
earlier step.
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
    """What one rank was doing. `open`: collectives that it was in, with their number by group; None: not recorded."""

    rank: int
    world_size: int
    step: int | None
    open: dict[str, tuple[str, int]] | None


@dataclass(frozen=True)
class Blamed:
    """The rank that others waited for."""

    rank: int
    why: str


def read_dumps(directory: Path, since: datetime) -> list[HangDump]:
    """Those that were written since then, by rank; what cannot be read as one is left out."""
    found: dict[int, HangDump] = {}
    for path in sorted(directory.glob("*-rank-*.txt")) if directory.is_dir() else []:
        try:
            if not _FILE.match(path.name) or path.stat().st_mtime < since.timestamp() - 1:
                continue
            dump = parse_dump(read_text(path, error=LaunchError, max_bytes=_MAX_BYTES))
        except (LaunchError, OSError):  # another program's file, or one that a retention took away
            continue
        if dump is not None:
            found[dump.rank] = dump
    return [found[rank] for rank in sorted(found)]


def parse_dump(text: str) -> HangDump | None:
    """None if it is not such a report."""
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
        step=int(step) if step.isdecimal() else None,
        open={group: (name, int(number)) for name, number, group in _COLLECTIVE.findall(section)} if recorded else None,
    )


def who_hangs(dumps: Sequence[HangDump]) -> Blamed | None:
    """The rank that the others waited for; None if they do not tell."""
    world_size = max((dump.world_size for dump in dumps), default=0)
    silent = sorted(set(range(world_size)) - {dump.rank for dump in dumps})
    if len(silent) == 1 and world_size > 1:
        return Blamed(silent[0], "it alone wrote nothing when the run hung: its process was stopped or blocked")
    outside = [dump for dump in dumps if dump.open is not None and not dump.open]
    inside = [(dump.rank, dump.open) for dump in dumps if dump.open]
    if len(outside) == 1 and inside:
        group, (name, number) = next(iter(inside[0][1].items()))
        return Blamed(outside[0].rank, f"it is in no collective, and the others wait in {name} {number} of {group}")
    for group in sorted({group for _, at in inside for group in at}):
        behind = _alone_behind([(at[group][1], rank) for rank, at in inside if group in at])
        if behind is not None:
            (at, rank), others = behind
            return Blamed(rank, f"it is in collective {at} of {group}, and the others are in {others}")
    behind = _alone_behind([(dump.step, dump.rank) for dump in dumps if dump.step is not None])
    if behind is None:
        return None
    (at, rank), others = behind
    return Blamed(rank, f"it had done {at} steps, and the others {others}")


def _alone_behind(places: list[tuple[int, int]]) -> tuple[tuple[int, int], int] | None:
    """Place and rank of the one that is behind all others, and the place of the next."""
    first, *others = sorted(places) or [(0, 0)]
    return (first, others[0][0]) if others and first[0] < others[0][0] else None
