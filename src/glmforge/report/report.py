"""The report of a run: one HTML page that needs nothing else, to read, print, mail or keep.

Everything on it comes from the files of the run directory (`glmforge.observe.run`); plots are `figures.py`,
numbers and tables are `summary.py`, the page is `report.html`. It works on a run that is still going and on
one with a single step.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from glmforge.extras import needed_for
from glmforge.observe.run import read_run, write_text
from glmforge.report.page import Table, Tile, page_template
from glmforge.report.safety import SAFETY, safety_table
from glmforge.report.samples import ShownSample, shown_samples
from glmforge.report.summary import summarize


class Sample(TypedDict):
    """A completion to show: the prompt is set bold, the completion follows it."""

    prompt: str
    completion: str


class Extra(TypedDict, total=False):
    """What the caller knows and the run directory does not."""

    samples: list[Sample]
    facts: Mapping[str, str]  # rows for 'Where it ran', e.g. {"Parameters": "4.9M, 1.2M active"}
    tiles: list[Tile]
    tables: list[Table]  # before those of the run


def write_report(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    extra: Extra | None = None,
    evaluations: Path | None = None,
) -> Path:
    """Write the HTML report of a run.

    Args:
        run_dir: the run directory; needs config.yaml, run.json and metrics.jsonl with at least one record.
        out: the file to write, `<run_dir>/report.html` by default.
        extra: samples and facts to show besides.
        evaluations: directory with results of the run's checkpoints, `<run_dir>/evaluations` by default.

    Returns:
        The path of the report.

    Raises:
        RunFileError: a file of the run is missing or damaged, or the report cannot be written.
        DataError: a result of a checkpoint, or that of `evaluate safety`, is damaged, or `evaluations` has none.
        MissingPackageError: matplotlib is not installed.
    """
    run = read_run(run_dir)
    path = run.directory.report if out is None else Path(out)
    extra = extra or {}
    with needed_for("drawing the report"):
        from glmforge.report.figures import draw_figures
        from glmforge.report.figures_rl import best_and_worst
    samples, num_samples = shown_samples(run)
    summary = summarize(run, report_dir=path.parent, facts=extra.get("facts", {}))
    tiles, tables = [*summary.tiles, *extra.get("tiles", [])], [*extra.get("tables", []), *summary.tables]
    if (refusals := safety_table(run.directory.root / SAFETY)) is not None:
        tables.insert(0, refusals)
    page = page_template("report.html").render(
        figures=draw_figures(run, evaluations),
        samples=[*(ShownSample(**sample) for sample in extra.get("samples", [])), *best_and_worst(run), *samples],
        num_left_out=num_samples - len(samples),
        summary=replace(summary, tiles=tiles, tables=tables),
    )
    write_text(path, page)
    return path
