"""The tables of docs/generate.md, from the results of `generation.py`; `scripts/doc_tables.py` writes them.

Before anything was measured they have no rows.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from record import RESULTS

OURS = "glmforge"
RIVALS = {
    "transformers eager": "transformers",
    "transformers grouped_mm": "transformers, grouped",
    "transformers continuous": "its continuous batching",
    "llama.cpp": "llama.cpp",
    "vllm": "vLLM",
}


def speed_table(dtype: str) -> str:
    """A row for each workload: our tokens per second and time to first token, and how many times each other's rate."""
    lines = [
        f"| {dtype}: requests x prompt + answer | tokens/s | first token, ms | times {' | '.join(RIVALS.values())} |",
        f"| {' | '.join(['---'] * (3 + len(RIVALS)))} |",
    ]
    for workload, programs in _workloads(dtype):
        ours = programs[OURS]
        ratios = [f"{programs[name]['ours_over_it']:.2f}" if name in programs else "" for name in RIVALS]
        figures = [f"{ours['tokens_per_s']:,.0f}", f"{1000 * ours['first_token_s']:,.0f}", *ratios]
        lines.append(f"| {' | '.join([workload, *figures])} |")
    return "\n".join(lines) + "\n"


def _workloads(dtype: str) -> Iterator[tuple[str, dict[str, Any]]]:
    file = RESULTS / "generation.json"
    found = json.loads(file.read_text("utf-8")) if file.exists() else {}
    yield from ((name, programs) for name, programs in found.get(dtype, {}).items() if name != "versions")


TABLES: list[Callable[[], str]] = [partial(speed_table, dtype) for dtype in ("fp32", "bf16")]
