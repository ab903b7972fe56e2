"""docs/stages.md shows what is declared, and what benchmarks/plan_stages.py computes."""

from collections.abc import Callable
from pathlib import Path

import plan_stages
import pytest

from glmforge.config.stage import stages_markdown

PAGE = Path(__file__).parents[3] / "docs" / "stages.md"


@pytest.mark.parametrize("table", [stages_markdown, *plan_stages.TABLES])
def test_the_tables_are_current(table: Callable[[], str]) -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "run scripts/doc_tables.py"
