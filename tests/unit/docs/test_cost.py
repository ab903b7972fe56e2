"""docs/cost.md lists the settings and prices that the planner has."""

from pathlib import Path

import pytest

from glmforge.plan.cost.prices import prices_markdown
from glmforge.plan.cost.settings import CostSettings, settings_markdown

PAGE = Path(__file__).parents[3] / "docs" / "cost.md"


@pytest.mark.parametrize("make", [settings_markdown, prices_markdown])
def test_tables_are_current(make) -> None:
    assert make() in PAGE.read_text(encoding="utf-8"), "run scripts/doc_tables.py"


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in CostSettings.model_fields.values())
