"""The runs of a sweep as a page that needs nothing else: their curves, settings against the measure, and a table."""

import math
from pathlib import Path

from glmforge.errors import ConfigError
from glmforge.extras import needed_for
from glmforge.observe.run import write_text
from glmforge.report.page import Column, Summary, make_table, page_template
from glmforge.report.sweep_view import SweepView


def write_sweep_page(view: SweepView, out: Path) -> Path:
    """Write the page to `out`, which it returns. Raises `ConfigError` for a suffix other than .html."""
    if out.suffix != ".html":
        raise ConfigError(f"--out {out}: must end in .html")
    with needed_for("sweep page: drawing"):
        from glmforge.report.sweep_figures import draw_sweep
    columns = [Column("Run"), *(Column(title, number) for title, number in view.columns)]
    table = make_table("All points", columns, [[run.name, *run.words] for run in view.runs], note=_note(view))
    summary = Summary(name=view.name, lead=view.lead, tiles=view.tiles, tables=[table])
    write_text(out, page_template("sweep.html").render(summary=summary, figures=draw_sweep(view)))
    return out


def _note(view: SweepView) -> str:
    known = [run for run in view.runs if run.measure is not None and math.isfinite(run.measure)]
    missing = len(view.runs) - len(known)
    rest = f"; {missing} without it are last" if missing else ""
    return f"Best first, by {view.measure}{rest}."
