"""docs/plan-accuracy.md shows the published runs as the result has them."""

from pathlib import Path

import plan_published
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "plan-accuracy.md"


@pytest.mark.parametrize("make", plan_published.TABLES)
def test_tables_are_current(make) -> None:
    assert make() in PAGE.read_text(encoding="utf-8"), "run scripts/doc_tables.py"
