"""Pages show the tables that benchmarks/result_tables.py makes of the results."""

from pathlib import Path

import pytest
import result_tables

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", result_tables.TABLES)
def test_tables_are_current(page: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert [table for make in result_tables.TABLES[page] if (table := make()) not in text] == [], (
        "run scripts/doc_tables.py"
    )
