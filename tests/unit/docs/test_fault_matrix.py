"""The matrix of faults and checks in the documentation is that of the tests."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("fault_matrix", ROOT / "scripts/fault_matrix.py")
assert SPEC is not None
assert SPEC.loader is not None
fault_matrix = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fault_matrix)


def test_the_page_and_the_matrix_are_those_of_the_planted_faults() -> None:
    assert fault_matrix.fault_table() in fault_matrix.PAGE.read_text(encoding="utf-8"), "run scripts/fault_matrix.py"
    assert fault_matrix.fault_matrix() == fault_matrix.MATRIX.read_text(encoding="utf-8"), "run scripts/fault_matrix.py"


def test_every_check_that_a_fault_names_exists() -> None:
    known = {fault_matrix.REACH, *(check.name for check in fault_matrix.CHECKS)}
    for _, faults in fault_matrix.PLANTED:
        for fault in faults:
            assert fault.checks <= known, fault.name
