"""Many names of hosts in few words, as hostfiles and Slurm write them: node[001-128]."""

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d{1,9})(\D*)", re.DOTALL)


def fold_hosts(names: Iterable[str]) -> str:
    """The names, those of a series together, numbers that follow each other as ranges. `parse_hosts` undoes it."""
    series: dict[tuple[str, str], list[str]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        before, number, after = found.groups() if found else (name, "", "")
        series.setdefault((before, after), []).append(number)
    return ",".join(_fold(before, numbers, after) for (before, after), numbers in series.items())


def _fold(before: str, numbers: list[str], after: str) -> str:
    spans: list[list[str]] = []
    for number in numbers:
        if spans and number and number == f"{int(spans[-1][1]) + 1:0{len(spans[-1][0])}d}":
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts = [first if first == last else f"{first}-{last}" for first, last in spans]
    return f"{before}[{','.join(parts)}]{after}" if parts[1:] or "-" in parts[0] else f"{before}{parts[0]}{after}"
