"""A corpus: raw files in, clean shards and a report out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from glmforge_corpus.pipeline.pipeline import Pipeline
from glmforge_corpus.pipeline.run import StepProgress, run_pipeline
from glmforge_corpus.report.page import write_corpus_page

REPORT_PAGE = "report.html"


def make_corpus(
    pipeline: Pipeline,
    executor: str = "local",
    *,
    redo: bool = False,
    progress: Callable[[StepProgress], None] | None = None,
) -> dict[str, Any]:
    """Run a pipeline (`run_pipeline`, whose arguments these are) and write the page of its report beside."""
    report = run_pipeline(pipeline, executor, redo=redo, progress=progress)
    write_corpus_page(report, page_of(pipeline.output))
    return report


def page_of(output: Path) -> Path:
    """Where a run's page is."""
    return output / REPORT_PAGE
