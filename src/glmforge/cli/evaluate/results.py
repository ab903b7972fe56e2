"""`glmforge evaluate compare, failures, table, card, contamination`: they read results and run no model."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.evaluate.model import benchmark_names
from glmforge.cli.tables import print_table
from glmforge.cli.tables import table as terminal_table
from glmforge.extras import needed_for
from glmforge.files import escaped

if TYPE_CHECKING:
    from glmforge.report.page import Table

ResultArgument = Annotated[Path, typer.Argument(help="Directory of a result.")]
ResultsArgument = Annotated[list[Path], typer.Argument(help="Directories of results.")]
PageOption = Annotated[Path | None, typer.Option(help="Write an HTML page.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def compare(old: ResultArgument, new: ResultArgument, out: PageOption = None, as_json: JsonOption = False) -> None:
    """Compare two results item by item: difference, interval, test, items that flipped, why; published scores.

    Example:

        glmforge evaluate compare results/step-1000 results/step-2000 --out difference.html
    """
    with needed_for("evaluate compare"):
        from glmforge.evaluate.compare import compare_results, not_compared
    from glmforge.evaluate.official import official_of
    from glmforge.report.evaluation_page import comparison_table, write_page

    found = compare_results(old, new)
    if out is not None:
        write_page(new, out, baseline=old)
    if as_json:
        return _print_json([{"verdict": one.verdict} | vars(one) for one in found])
    sentences = [f"{one.benchmark}: {sentence}" for one in found for sentence in one.explained()]
    published = map(str, official_of(*(one.benchmark for one in found)))
    return print_with(comparison_table(found), [*sentences, *not_compared(old, new, found), *published])


def failures(
    result: ResultArgument,
    benchmark: Annotated[str | None, typer.Option("--benchmark", "-b", help="Only this one.")] = None,
    out: PageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why items failed: kinds, subjects, lengths, and what to change first.

    Example:

        glmforge evaluate failures results/glm --benchmark gsm8k --out failures.html
    """
    with needed_for("evaluate failures"):
        from glmforge.evaluate.failures import KINDS, failures_of
        from glmforge.report.evaluation_page import write_page
    from glmforge.report.page import make_table

    found = failures_of(result, benchmark)
    if out is not None:
        write_page(result, out, benchmark=benchmark)
    if as_json:
        return _print_json(found)
    rows = [
        [one.benchmark, f"{len(one.failures):,} of {one.num_replies:,}", *(f"{one.kinds[kind]:,}" for kind in KINDS)]
        for one in found
    ]
    sentences = [f"{one.benchmark}: {each}: {each.evidence}" for one in found for each in one.advice]
    return print_with(make_table("", ["benchmark", "failed", *KINDS], rows), sentences)


def table(
    results: ResultsArgument,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Scores over runs and steps, and published ones. The best is marked, where results have the same questions.

    Example:

        glmforge evaluate table results/step-*
    """
    from glmforge.evaluate.history import read_history
    from glmforge.evaluate.official import official_of
    from glmforge.report.page import make_table

    names, rows = read_history(results)
    if as_json:
        return _print_json(rows)
    if as_csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]))
        writer.writeheader()
        return writer.writerows(rows)
    facts = ("result", "step", "tokens")
    cells = [
        [*("" if row[key] is None else f"{row[key]}" for key in facts), *(_cell(row, name) for name in names)]
        for row in rows
    ]
    title = "score (finished replies, cut ones)"
    return print_with(make_table(title, [*facts, *names], cells), map(str, official_of(*names)))


def card(
    results: ResultsArgument,
    name: Annotated[str, typer.Option(help="Of the model; the end of its path by default.")] = "",
) -> None:
    """A model card's section in Markdown, with the metadata that Hugging Face reads.

    Example:

        glmforge evaluate card results/glm > README.md
    """
    from glmforge.evaluate.card import card_section

    typer.echo(card_section(results, name), nl=False)


def contamination(
    sources: Annotated[list[Path], typer.Argument(help="Runs, or prefixes of token shards.", metavar="RUN|SHARD...")],
    benchmark: Annotated[list[str], typer.Option("--benchmark", "-b", help="Names, with commas between them.")],
    data: Annotated[Path | None, typer.Option(help="Directory with the benchmarks' files.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Of shards that are given without their run.")] = None,
    result: Annotated[Path | None, typer.Option(help="A result to score with and without leaked items.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the items of benchmarks whose questions are in the training data.

    Example:

        glmforge evaluate contamination runs/glm --benchmark gsm8k,math500 --data data/eval --result results/glm
    """
    names = benchmark_names(benchmark)
    with needed_for("evaluate contamination"):
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks.catalog import open_benchmark, questions_of
    from glmforge.evaluate.contamination import documents_of, find_leaks
    from glmforge.evaluate.result import format_score, read_items
    from glmforge.report.page import make_table

    items = [] if result is None else list(read_items(result))
    opened = [open_benchmark(name, data) for name in names]
    questions = {one.name: questions_of(one) for one in opened}  # a task file is called otherwise in results
    leaks = find_leaks(questions, documents_of(sources, tokenizer))
    if as_json:
        return _print_json([{"leaks": one, "scores": one.scores(items)} for one in leaks])
    rows = [
        [
            one.benchmark,
            *(f"{number:,}" for number in (one.num_items, one.num_searchable, len(one.found))),
            f"{len(one.found) / max(1, one.num_items):.2%}",
            *("" if score is None else format_score(score.mean) for score in one.scores(items)),
        ]
        for one in leaks
    ]
    titles = ("benchmark", "items", "searched for", "leaked", "share", "score", "without leaked", "of leaked")
    return print_with(make_table("", titles, rows))


def print_with(given: "Table", sentences: Iterable[str] = ()) -> None:
    """A page's table on the terminal, and sentences below it. Names in them may be from elsewhere."""
    console, titles = Console(), [escape(escaped(column.title.lower())) for column in given.columns]
    words = [title for title, column in zip(titles, given.columns, strict=True) if not column.number]
    rows = terminal_table(*titles, in_words=words)
    for cells in given.rows:
        rows.add_row(*(escape(escaped(cell.text)) for cell in cells))
    print_table(escape(given.title), rows, console)
    for sentence in sentences:
        console.print(escaped(sentence), markup=False, highlight=False, soft_wrap=True)


def _print_json(found: Sequence[object]) -> None:
    from pydantic_core import to_json

    typer.echo(to_json(found, indent=2, inf_nan_mode="null").decode(errors="replace"))


def _cell(row: dict[str, Any], name: str) -> str:
    """A score, with that of finished replies and the share of cut ones where replies were written."""
    from glmforge.evaluate.result import format_score

    score, finished, cut = (row[name], row[f"{name}, finished"], row[f"{name}, cut"])
    if score is None:
        return ""
    beside = "" if cut is None else f" ({format_score(finished)}, {format_score(cut)})"
    return f"{format_score(score)}{beside}{' *' if row[f'{name}, best'] else ''}"
