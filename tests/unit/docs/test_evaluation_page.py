"""The page of evaluation names every known benchmark, and says whether it was run on its real data."""

import re
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from glmforge.evaluate.benchmarks.catalog import known_names

PAGE = Path(__file__).parents[3] / "docs" / "evaluation.md"
_ROW = re.compile(r"^\| `(?P<name>\w+)` \|.*\| (?P<state>proven|coded) \|$", re.MULTILINE)


def test_every_benchmark_is_listed_with_its_state() -> None:
    states = {row["name"]: row["state"] for row in _ROW.finditer(PAGE.read_text("utf-8"))}
    assert states.keys() == set(known_names())
    assert {name for name, state in states.items() if state == "coded"} == {"ifeval", "swebench"}
