"""The page of a sweep: losses of all runs, the measure over each setting, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from glmforge.extras import needed_for
from glmforge.observe.run import write_text
from glmforge.report.page import Summary, check_suffix, page_template


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep; `measure` is None if it has none yet, `losses` are tokens and loss of each record."""

    name: str
    settings: dict[str, float | str]
    measure: float | None
    losses: Sequence[tuple[float, float]]


def write_sweep_page(summary: Summary, runs: Sequence[SweepRun], measure: str, out: Path) -> None:
    """Write the page to `out`; the runs are sorted, the best by `measure` first.

    Raises `ConfigError` for a suffix other than .html.
    """
    check_suffix(out, "--out")
    with needed_for("sweep page: drawing"):
        from glmforge.report.sweep_figures import draw_sweep
    write_text(out, page_template("sweep.html").render(summary=summary, figures=draw_sweep(runs, measure)))
