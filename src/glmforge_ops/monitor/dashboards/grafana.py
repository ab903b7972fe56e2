"""Grafana's JSON, made of the panels by grafana-foundation-sdk. Not kept in the repository: made where it is needed."""

import json
from pathlib import Path
from typing import Any

from glmforge.extras import needed_for
from glmforge_ops.monitor.dashboards.panels import DASHBOARDS, Dashboard, Panel

WIDTH, HEIGHT = 12, 8
"""Of a panel, in Grafana's grid of 24 columns."""


def dashboard_json(dashboard: Dashboard) -> str:
    """A dashboard for Grafana 10 and later. Raises `MissingPackageError` without the extra `dashboards`."""
    with needed_for("monitor dashboards"):
        from grafana_foundation_sdk.builders.dashboard import Dashboard as Builder
        from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh, VariableSort

    source = DataSourceRef(type_val="prometheus", uid="${datasource}")
    runs = (
        QueryVariable("run")
        .label("Run")
        .datasource(source)
        .query("label_values(glmforge_run_info, run)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )
    built = (
        Builder(f"glmforge: {dashboard.title}")
        .uid(dashboard.uid)
        .tags(["glmforge"])
        .refresh("30s")
        .time("now-3h", "now")
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(runs)
    )
    for number, panel in enumerate(dashboard.panels):
        built = built.with_panel(_panel(number, panel, source))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def _panel(number: int, panel: Panel, source: Any) -> Any:
    from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
    from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
    from grafana_foundation_sdk.models.dashboard import GridPos

    place = GridPos(h=HEIGHT, w=WIDTH, x=number % 2 * WIDTH, y=number // 2 * HEIGHT)
    built = Timeseries().id(number + 1).title(panel.title).unit(panel.unit).datasource(source).grid_pos(place)
    built = built.line_width(1).fill_opacity(4)
    legend = VizLegendOptions().show_legend(True).placement(LegendPlacement.BOTTOM)
    built = built.legend(legend.display_mode(LegendDisplayMode.LIST).calcs(["lastNotNull"]))
    built = built.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    if panel.needs:
        built = built.description(f"Needs {panel.needs}.")
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        built = built.with_target(Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend))
    return built


def write_dashboards(directory: Path) -> list[Path]:
    """Write one file per dashboard, each whole; returns their paths."""
    from glmforge.data.files import write_whole

    contents = {directory / f"{one.uid}.json": dashboard_json(one) for one in DASHBOARDS}
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        json.loads(text)
        write_whole(path, text.encode())
    return list(contents)
