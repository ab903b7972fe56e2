"""`glmforge evaluate needles`: what a model retrieves from long texts."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.needles import NeedleOptions, tests_of
from glmforge.cli.data.options import ForceOption
from glmforge.cli.generate import Dtype
from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError

if TYPE_CHECKING:
    from rich.table import Table

    from glmforge.observe.metrics import Record


class Answers(StrEnum):
    """How a model answers."""

    scored = "scored"
    generated = "generated"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(NeedleOptions):
    """Which model answers, and how."""

    model: Annotated[Path, typer.Argument(help="An export, a run, or a checkpoint.")]
    answers: Annotated[
        Answers,
        typer.Option(help="scored: one forward pass over text and answer; generated: the model writes the answer."),
    ] = Answers.scored
    out: Annotated[Path | None, typer.Option(help="JSONL file for the results, one line per cell of the table.")] = None
    replies: Annotated[
        Path | None,
        typer.Option(
            help="JSONL file for the model's replies, one line per test; run the command again to resume. Needs "
            "--answers generated."
        ),
    ] = None
    dtype: Annotated[Dtype | None, typer.Option(help="Compute dtype; default: the stored one.")] = None
    device: Annotated[str, typer.Option(help="Device, such as cuda.")] = "cpu"
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None
    force: ForceOption = False


@takes(EvaluateOptions)
def needles(options: EvaluateOptions) -> None:
    """Test what a model retrieves from long texts, by length and depth.

    Examples:

        glmforge evaluate needles runs/long --length 4096 --length 32768

        glmforge evaluate needles exports/glm --length 131072 --task multi_key --task variables --answers generated
        --device cuda --out needles.jsonl --replies replies.jsonl
    """
    from glmforge.data.files import refuse_unwritable
    from glmforge.evaluate.needles import score_needles
    from glmforge.evaluate.needles_generated import generate_needles, generate_replies
    from glmforge.evaluate.needles_of_model import load_for_needles, write_records
    from glmforge.parallel.build import DTYPES

    if options.replies is not None and options.answers is Answers.scored:
        raise GlmforgeError("--replies: scoring writes no replies; add --answers generated")
    for path in filter(None, (options.out, options.replies)):
        refuse_unwritable(path, options.force)
    dtype = None if options.dtype is None else DTYPES[options.dtype.value]
    model, tokenizer = load_for_needles(options.model, options.tokenizer, dtype, options.device, max(options.length))
    tests = tests_of(options, tokenizer)
    lengths = tests.config.lengths
    if options.replies is not None:
        source = str(options.model)
        records = generate_replies(model, tests, lengths, options.replies, source=source, overwrite=options.force)
    else:
        find = score_needles if options.answers is Answers.scored else generate_needles
        records = find(model, tests, lengths)
    if options.out is not None:
        write_records(records, options.out)
    print_table("", _table(records), Console())


def _table(records: "list[Record]") -> "Table":
    """A row for each task and length, a column for each depth: percentages of right answers."""
    depths = sorted({record["needle_depth"] for record in records})
    rows = table("task", "tokens", *(f"depth {depth:g}" for depth in depths), "answers", in_words=("task",))
    for task, length in dict.fromkeys((record["needle_task"], record["needle_length"]) for record in records):
        row = [one for one in records if (one["needle_task"], one["needle_length"]) == (task, length)]
        shares = [f"{one['needle_accuracy']:.0%}" for one in sorted(row, key=lambda one: float(one["needle_depth"]))]
        rows.add_row(task, f"{length:,}", *shares, f"{sum(one['needle_answers'] for one in row):,}")
    return rows
