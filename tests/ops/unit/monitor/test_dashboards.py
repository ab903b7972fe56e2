"""Grafana's JSON of the panels, and the queries in it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from glmforge_ops.monitor.dashboards.grafana import dashboard_json, write_dashboards
from glmforge_ops.monitor.dashboards.panels import DASHBOARDS, Dashboard
from glmforge_ops.monitor.page.server import expression
from glmforge_ops.monitor.rule_files import rule_text
from helpers.packages import install_or_skip

model = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="grafana-foundation-sdk is not installed")
PAGE = Path(expression.__code__.co_filename).parent


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_a_dashboard_for_grafana(dashboard: Dashboard) -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    text = dashboard_json(dashboard)
    made: dict[str, Any] = json.loads(text)
    # The round trip loses keys that Grafana does not know.
    again = JSONEncoder(sort_keys=True, indent=1).encode(model.Dashboard.from_json(made))
    assert json.loads(again) == made
    panels = made["panels"]
    assert len({one["id"] for one in panels}) == len(panels) == len(dashboard.panels)
    taken = [
        (x, y) for one in panels for place in [one["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    ]  # fmt: skip
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert all(one["datasource"]["uid"] == "${datasource}" for one in panels)
    assert {one["name"]: one["type"] for one in made["templating"]["list"]} == {
        "datasource": "datasource",
        "run": "query",
    }
    asked = [target["expr"] for one in panels for target in one["targets"]]
    assert asked == [query.expr for panel in dashboard.panels for query in panel.queries]


def test_names_are_unique_and_units_known_to_the_page(tmp_path: Path) -> None:
    assert len({one.uid for one in DASHBOARDS}) == len(DASHBOARDS) == len(write_dashboards(tmp_path)) == 8
    for dashboard in DASHBOARDS:
        assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)
    forms = (PAGE / "chart.js").read_text().partition("const FORMS = {")[2].partition("\n};")[0]
    known = set(re.findall(r"^  (\w+):", forms, re.MULTILINE))
    assert {panel.unit for dashboard in DASHBOARDS for panel in dashboard.panels} <= known


def test_queries_are_promql(tmp_path: Path) -> None:
    install_or_skip(["promtool"], ["prometheus"])
    queries = [query.expr for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries]
    rules = [{"record": f"q{n}", "expr": expression(one, 'a"b.*\\(é', 15)} for n, one in enumerate(queries)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_recorded_series_of_panels_are_recorded() -> None:
    recorded = set(re.findall(r"record: (\S+)", rule_text("recording.yml")))
    asked = {
        name
        for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries
        for name in re.findall(r"\b(?:run|gpu):[\w:]+", query.expr)
    }  # fmt: skip
    assert asked <= recorded
