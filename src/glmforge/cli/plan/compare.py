"""`glmforge plan --compare`: two plans on the same machine beside each other."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from glmforge.cli.tables import print_table, table

if TYPE_CHECKING:
    from glmforge.config.schema import RunConfig
    from glmforge.plan.report import PlanReport
    from glmforge.plan.stages.stage import TrainingStage


def other_run(words: str, stage: "TrainingStage", world_size: int) -> "RunConfig":
    """The run that --compare names: a file or a preset, and settings to change in it behind its name."""
    from glmforge.config import load_config
    from glmforge.errors import ConfigError
    from glmforge.plan.layout import with_assumed_steps

    try:
        name, *overrides = shlex.split(words)
    except ValueError as error:
        raise ConfigError(f"--compare: {words!r} is not a configuration: {error}, or it is empty") from None
    return with_assumed_steps(load_config(name, overrides), stage.rollout, world_size)[0]


def show_comparison(
    first: "PlanReport", second: "PlanReport", console: Console, *, page: Path | None, as_json: bool
) -> None:
    """In the terminal or as JSON, and on a page where `page` names one."""
    from glmforge.plan.comparison import comparison_as_json

    if as_json:
        typer.echo(json.dumps(comparison_as_json(first, second), indent=2))
    else:
        _print(first, second, console)
    if page is not None:
        from glmforge.report.plan_comparison import write_comparison

        written = write_comparison(first, second, page)
        Console(stderr=as_json).print(f"{written}", highlight=False, soft_wrap=True)


def _print(first: "PlanReport", second: "PlanReport", console: Console) -> None:
    from glmforge.plan.comparison import compared_rows, differing_settings

    names = [f"{first.run.name}", f"{second.run.name}"]
    if names[0] == names[1]:
        names = ["first", "second"]
    settings = table("setting", *names, in_words=names)
    for row in differing_settings(first, second):
        settings.add_row(*row)
    if settings.row_count:
        print_table("Settings that differ", settings, console)
    rows = table("figure", *names, "change", in_words=names)
    for compared in compared_rows(first, second):
        rows.add_row(*compared)
    print_table("Result", rows, console)
