"""The tables of the documentation are those that scripts/doc_tables.py makes."""

import runpy
from pathlib import Path

import pytest
import result_tables

ROOT = Path(__file__).parents[3]
TABLES = runpy.run_path(str(ROOT / "scripts" / "doc_tables.py"))["TABLES"]


@pytest.mark.parametrize("page", sorted({*TABLES, *result_tables.TABLES}))
def test_tables_are_current(page: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    tables = [make() for make in [*TABLES.get(page, ()), *result_tables.TABLES.get(page, ())]]
    assert [table for table in tables if table not in text] == [], "run scripts/doc_tables.py"
