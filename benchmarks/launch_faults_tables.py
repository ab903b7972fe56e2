"""The table of docs/guides/recovery.md, from the results of `launch_faults.py`; `scripts/doc_tables.py` writes it.

Before anything was measured it has no rows.
"""

import json
from typing import Any

from record import RESULTS

_PHASES = ("detected_s", "decided_s", "started_s", "first_step_s")


def faults_table() -> str:
    """A row for each kind of fault: seconds to the next step, and what they went to."""
    header = ("fault", "seconds", "detected", "decided", "started", "first step")
    file = RESULTS / "launch_faults.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))["by_fault"] if file.exists() else {}
    return _table(header, [(name, *_figures(figures)) for name, figures in found.items()])


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in (header, ("---",) * len(header), *rows))


def _figures(figures: dict[str, Any]) -> tuple[str, ...]:
    if figures["seconds"] is None:
        return ("goes on", *([""] * len(_PHASES)))
    return tuple(f"{figures[key] or 0:.0f}" for key in ("seconds", *_PHASES))


TABLES = [faults_table]
