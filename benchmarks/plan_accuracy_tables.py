"""The tables of docs/plan-accuracy.md, from the results of `plan_accuracy.py`; `scripts/doc_tables.py` writes them.

Before anything was measured they have no rows.
"""

import json
from collections.abc import Iterable
from typing import Any

from record import RESULTS


def accuracy_table() -> str:
    """A row for each size and layout: step time as a ratio to one rank, and peak memory."""
    header = ("size", "layout", "ranks", "ratio", "predicted", "error, %", "peak MB", "predicted MB", "error, %")
    rows = (
        (
            row["size"],
            row["layout"],
            row["ranks"],
            f"{row['ratio']:.2f}",
            f"{row['predicted_ratio']:.2f}",
            f"{100 * row['error']:+.0f}",
            f"{row['peak_bytes'] / 1e6:.1f}",
            f"{row['predicted_peak_bytes'] / 1e6:.1f}",
            f"{100 * row['peak_error']:+.1f}",
        )
        for row in _result().get("rows", [])
    )
    return _table(header, rows)


def sweep_table() -> str:
    """A row for each number of ranks: the planner's choice beside the fastest of all layouts."""
    header = ("ranks", "layouts", "chosen", "fastest", "chosen / fastest", "search / fastest", "slowest / fastest")
    header += ("rank correlation",)
    rows = (
        (
            name.split()[0],
            found["layouts"],
            found["chosen"],
            found["best"],
            f"{found['ratio']:.2f}",
            f"{found['searched_ratio']:.2f}",
            f"{found['slowest_over_best']:.1f}",
            f"{found['rank_correlation']:.2f}",
        )
        for name, found in _result().get("sweeps", {}).items()
    )
    return _table(header, rows)


TABLES = [sweep_table, accuracy_table]


def _result() -> dict[str, Any]:
    file = RESULTS / "plan_accuracy.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = (header, ["---"] * len(header), *rows)
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
