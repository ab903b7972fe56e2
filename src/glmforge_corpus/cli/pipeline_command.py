"""Commands that each run a pipeline for a single purpose, and options that commands share.

Such a command is written as a function of its own options that returns the stages after `extract`. `pipeline_command`
adds what all of these commands take (inputs, output, how inputs are read, workers) and runs the pipeline.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.cli.data.options import TextFieldOption, split_names
from glmforge.errors import DataError
from glmforge_corpus.cli.terminal import step_progress

if TYPE_CHECKING:
    from glmforge_corpus.pipeline.pipeline import Pipeline
    from glmforge_corpus.pipeline.run import StepProgress


RedoOption = Annotated[
    bool,
    typer.Option("--redo", help="Discard finished work from other options, instead of refusing to run."),
]


def typer_command(
    call: Callable[..., None], like: Callable[..., Any], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """`call`, which takes keyword arguments, as a command with the name and help of `like` and these parameters."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    call.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    call.__name__, call.__doc__ = like.__name__, like.__doc__
    return call


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def option_groups(**groups: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of other functions, and for each of its parameters named here what one returns."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def call(**values: Any) -> None:
            made = {
                name: group(**{option: values.pop(option) for option in parameters_of(group)})
                for name, group in groups.items()
            }
            command(**values, **made)

        parameters: list[inspect.Parameter] = []
        for name, parameter in parameters_of(command).items():
            parameters += parameters_of(groups[name]).values() if name in groups else [parameter]
        return typer_command(call, command, parameters)

    return decorate


@dataclass(frozen=True)
class Stages:
    """What a command makes of its options.

    Attributes:
        stages: the stages after `extract`, as a pipeline file has them.
        options: key of a stage or block -> the option that sets it, for error messages:
            {"minhash.threshold": "--threshold"}.
        reading: further options of `extract`.
        seed: of the pipeline.
    """

    stages: Sequence[dict[str, Any]]
    options: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


def pipeline_command(stages_of: Callable[..., Stages]) -> Callable[..., None]:
    """The command that runs the stages `stages_of` returns; typer sees the parameters of both."""

    def command(
        inputs: Annotated[
            list[Path],
            typer.Argument(
                help="Files and directories of text, JSONL, Parquet, HTML, WARC or PDF, recognised by suffix, "
                "compressed (.gz, .zst) or not. Repositories and issues need a pipeline file."
            ),
        ],
        out: Annotated[
            Path,
            typer.Option(
                help="Output directory: documents/, report.html, quarantine.jsonl. Run the command again to resume."
            ),
        ],
        text_field: TextFieldOption = "text",
        id_field: Annotated[
            str | None,
            typer.Option(help="JSON field or Parquet column with the ID; default: from file and line."),
        ] = None,
        metadata: Annotated[
            str,
            typer.Option(
                metavar="url,date,...",
                help="JSON fields or Parquet columns to keep as metadata; '*': all but text and id.",
            ),
        ] = "",
        workers: Annotated[int, typer.Option(min=0, help="Tasks run in parallel; 0: one per core.")] = 0,
        redo: RedoOption = False,
        **own: Any,
    ) -> None:
        fields = {"text_field": text_field, "id_field": id_field, "metadata": split_names(metadata)}
        run_and_report(_pipeline(inputs, fields, out, workers, stages_of(**own)), redo=redo)

    inputs, out, *reading, _ = parameters_of(command).values()
    return typer_command(command, stages_of, [inputs, out, *parameters_of(stages_of).values(), *reading])


def _pipeline(inputs: Sequence[Path], fields: Mapping[str, Any], out: Path, workers: int, given: Stages) -> "Pipeline":
    from glmforge_corpus.pipeline.pipeline import pipeline_of

    names = names_of(inputs)
    sources = [{"source": name, "path": str(path), **fields} for name, path in zip(names, inputs, strict=True)]
    value = {
        "output": str(out),
        "name": out.name,
        "seed": given.seed,
        "stages": [{"extract": {"inputs": sources, **given.reading}}, *given.stages],
        "executors": {"local": {"workers": workers}},
    }
    return pipeline_of(value, "command line", given.options)


def names_of(paths: Sequence[Path]) -> list[str]:
    """What files are called in reports and ids: by stem if that is unique, otherwise by path."""
    short = [path.name.split(".")[0] or "input" for path in paths]
    return [name if short.count(name) == 1 else path.as_posix() for name, path in zip(short, paths, strict=True)]


def run_and_report(
    pipeline: "Pipeline",
    executor: str = "local",
    *,
    redo: bool = False,
    also: "Callable[[StepProgress], None] | None" = None,
) -> None:
    """Run a pipeline, show its progress, here and to `also`, and print what came out."""
    from glmforge_corpus.cli.terminal import outcome
    from glmforge_corpus.pipeline.run import run_pipeline
    from glmforge_corpus.report.page import write_corpus_page

    with step_progress() as show:

        def tell(step: "StepProgress") -> None:
            show(step)
            if also is not None:
                also(step)

        report = run_pipeline(pipeline, executor, redo=redo, progress=tell)
        page = write_corpus_page(report, pipeline.output / "report.html")
    for line in outcome(report, pipeline.output, page):
        typer.echo(line)
    if not report["stages"][-1]["statistics"]["written"]["documents"]:
        raise DataError(f"{pipeline.output}: no documents remain; {page} shows what removed them")
