"""Write the matrix of faults and checks: a table in docs/cluster-check.md, and docs/cluster-check-matrix.csv.

python scripts/fault_matrix.py

It is made from the lists that the tests plant, which hold each fault to exactly these checks.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from glmforge_ops.health.checks.examine import REACH  # noqa: E402
from glmforge_ops.health.checks.registry import CHECKS  # noqa: E402
from helpers import node_faults, real_faults  # noqa: E402
from helpers.planted_faults import PlantedFault, matrix  # noqa: E402

PAGE, MATRIX = ROOT / "docs/cluster-check.md", ROOT / "docs/cluster-check-matrix.csv"
HEADER = "| fault | planted on | told by |\n|---|---|---|\n"
PLANTED: tuple[tuple[str, tuple[PlantedFault, ...]], ...] = (
    ("a host in a namespace", (*real_faults.FAULTS, real_faults.TAKEN_PORT)),
    ("recorded facts of a node", (*node_faults.FAULTS, *node_faults.ROCE)),
    ("recorded facts of all nodes", tuple(node_faults.EVERYWHERE)),
)


def fault_table() -> str:
    """A row for each fault."""
    rows = [
        f"| {fault.name} | {where} | {', '.join(f'`{check}`' for check in sorted(fault.checks))} |\n"
        for where, faults in PLANTED
        for fault in faults
    ]
    return HEADER + "".join(rows)


def fault_matrix() -> str:
    """Faults by checks, as CSV."""
    faults = [fault for _, of_kind in PLANTED for fault in of_kind]
    noticed = {fault.name: fault.checks for fault in faults}
    return matrix(faults, [REACH, *(check.name for check in CHECKS)], noticed)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADER)
    lines = rest.splitlines(keepends=True)
    after = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    PAGE.write_text(before + fault_table() + "".join(lines[after:]), encoding="utf-8")
    MATRIX.write_text(fault_matrix(), encoding="utf-8")
