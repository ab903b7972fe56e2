"""The tables of docs/guides/recovery.md, from the results of `launch_faults.py`; `scripts/doc_tables.py` writes them.

Before anything was measured they have no rows.
"""

import json
from typing import Any

from record import RESULTS

_PHASES = ("detected_s", "decided_s", "started_s", "first_step_s")


def faults_table() -> str:
    """A row for each kind of fault: seconds to the next step, and what they went to."""
    header = ("fault", "seconds", "detected", "decided", "started", "first step")
    return _table(header, [(name, *_figures(figures)) for name, figures in _found("launch_faults").items()])


def soak_table() -> str:
    """The same of many faults, chosen by chance: medians, and how many of each kind."""
    header = ("fault", "times", "seconds", "detected", "decided", "started", "first step")
    found = _found("launch_soak")
    return _table(header, [(name, str(figures["times"]), *_figures(figures)) for name, figures in found.items()])


def _found(result: str) -> dict[str, dict[str, Any]]:
    file = RESULTS / f"{result}.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))["by_fault"] if file.exists() else {}
    return found


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in (header, ("---",) * len(header), *rows))


def _figures(figures: dict[str, Any]) -> tuple[str, ...]:
    if figures["seconds"] is None:
        return ("goes on", *([""] * len(_PHASES)))
    return tuple(f"{figures[key] or 0:.0f}" for key in ("seconds", *_PHASES))


TABLES = [faults_table, soak_table]
