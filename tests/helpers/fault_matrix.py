"""Which check notices which fault, as the CSV file that is kept beside the tests: `python -m helpers.fault_matrix`.

Run in `tests`, it writes the file anew from the tables of faults. That each fault is noticed by exactly these checks is
what `test_planted_faults.py` asserts.
"""

from pathlib import Path

from glmforge.cluster.checks.registry import CHECKS
from helpers.node_faults import EVERYWHERE, FAULTS, ROCE
from helpers.planted_faults import matrix

MATRIX = Path(__file__).parents[1] / "unit/cluster/checks/fault_matrix.csv"
PROBES = (
    "clock",
    "gpu",
    "infiniband",
    "kernel",
    "limits",
    "memory",
    "numa",
    "nvlink",
    "pcie",
    "processes",
    "versions",
)


def matrix_of_faults() -> str:
    """Faults by checks, for all checks that judge or compare what these probes tell."""
    faults = [*FAULTS, *EVERYWHERE, *ROCE]
    checks = [check.name for check in CHECKS if check.probe in PROBES and check.act is None]
    return matrix(faults, checks, {fault.name: fault.checks for fault in faults})


if __name__ == "__main__":
    MATRIX.write_text(matrix_of_faults(), encoding="utf-8")
