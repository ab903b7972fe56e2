"""Many names of hosts in few words, as hostfiles and Slurm write them: node[001-128]."""

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)", re.DOTALL)


def fold_hosts(names: Iterable[str]) -> str:
    """The names in their order, neighbours with numbers that follow each other as ranges. `expand_hosts` undoes it."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        # A number without leading zeros has as many digits as it has: node9 and node10 are of one series.
        key = (name, "", -1) if found is None else (found[1], found[3], len(found[2]) if found[2][0] == "0" else 0)
        groups.setdefault(key, []).append(0 if found is None else int(found[2]))
    return ",".join(_folded(*key, numbers) for key, numbers in groups.items())


def _folded(before: str, after: str, width: int, numbers: list[int]) -> str:
    if width == -1:
        return before
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1 and len(str(number)) <= max(width, len(str(spans[-1][0]))):
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts = [f"{first:0{width}d}" + (f"-{last:0{width}d}" if last > first else "") for first, last in spans]
    inside = ",".join(parts)
    return f"{before}[{inside}]{after}" if len(parts) > 1 or "-" in inside else f"{before}{inside}{after}"
