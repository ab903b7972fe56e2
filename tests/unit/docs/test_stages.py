"""docs/stages.md shows what benchmarks/plan_stages.py computes."""

from collections.abc import Callable
from pathlib import Path

import plan_stages
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "stages.md"


@pytest.mark.parametrize("table", plan_stages.TABLES)
def test_the_tables_are_current(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run scripts/doc_tables.py"
