"""The closed forms against the dry runs that `benchmarks/plan_memory.py` has recorded: shipped files, and each way of
sharing, recomputation, schedule and offload once."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import load_config
from glmforge.config.layout import resolve_layout
from glmforge.plan.layout import select_phase
from glmforge.plan.memory.estimate import estimate_memory
from glmforge.plan.memory.purposes import Purpose

ROOT = Path(__file__).parents[4]
RUNS = json.loads((ROOT / "benchmarks" / "results" / "plan_memory.json").read_text("utf-8"))["runs"]

PEAK, PLACE = 0.06, 0.12
"""Errors of the fullest rank and of any place. What errs is working memory: of it the forms know the largest parts."""


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row["name"])
def test_the_forms_are_near_the_dry_run(row: dict[str, Any]) -> None:
    source = str(ROOT / row["file"]) if row["file"].endswith(".yaml") else row["file"]
    config = select_phase(load_config(source, row["settings"]), row["phase"])
    estimate = estimate_memory(config, resolve_layout(config, row["world_size"]))
    found = row["dry_run"]
    assert estimate.peak == pytest.approx(max(place["peak"] for place in found.values()), rel=PEAK)
    for pp_rank, place in found.items():
        form = estimate.places[int(pp_rank)]
        assert form.peak == pytest.approx(place["peak"], rel=PLACE)
        for purpose in (Purpose.WEIGHTS, Purpose.OPTIMIZER):
            assert form.at_peak[purpose] == place["held"][purpose], purpose
