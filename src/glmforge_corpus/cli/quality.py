"""`glmforge data train-quality|train-toxicity`: classifiers trained on wanted and unwanted documents."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.options import ForceOption, OnError, OnErrorOption, TextFieldOption, print_skipped
from glmforge.cli.tables import print_table, table
from glmforge.data.documents.read import Corpus, read_documents
from glmforge.data.files import refuse_unwritable
from glmforge.observe import units
from glmforge.observe.work_progress import Show, work_progress

if TYPE_CHECKING:
    from glmforge_corpus.filter.linear.training import Seeds, TrainingReport

_Command = Callable[..., None]


def _trainer(what: str, *, positives: tuple[str, str], negatives: tuple[str, str], about: str) -> _Command:
    """The command that trains a classifier of `what`: options and work are the same for all, the sides' names are not.

    Args:
        positives, negatives: (option, its help) of the documents of the two labels.
        about: the command's help.
    """
    (wanted, wanted_help), (unwanted, unwanted_help) = positives, negatives

    def train(
        positive: Annotated[list[Path], typer.Option(f"--{wanted}", help=f"{wanted_help}. Repeatable.")],
        negative: Annotated[list[Path], typer.Option(f"--{unwanted}", help=f"{unwanted_help}.")],
        out: Annotated[Path, typer.Option(help="Model file to write (.npz).")],
        held_out: Annotated[
            float, typer.Option(min=0.01, max=0.4, help="Share held out for evaluation; an equal share calibrates.")
        ] = 0.1,
        seed: Annotated[int, typer.Option(min=0, help="Seed of the split, the hash and the training order.")] = 0,
        high_precision: Annotated[
            float, typer.Option(min=0, max=1, help="Precision on held-out documents that defines bucket 'high'.")
        ] = 0.95,
        low_recall: Annotated[
            float, typer.Option(min=0.01, max=1, help="Fraction of held-out positives that must be above bucket 'low'.")
        ] = 0.95,
        passes: Annotated[int, typer.Option(min=1, help="Passes over the documents.")] = 5,
        bits: Annotated[int, typer.Option(min=10, max=26, help="The model has 2^BITS weights.")] = 20,
        max_ngram: Annotated[int, typer.Option(min=1, max=3, help="Longest word n-gram used as a feature.")] = 2,
        char_ngram: Annotated[
            int, typer.Option(min=0, max=8, help="Length of character n-grams used as features; 0: none.")
        ] = 0,
        text_field: TextFieldOption = "text",
        positive_text_field: Annotated[
            str | None, typer.Option(f"--{wanted}-text-field", help=f"Text field of --{wanted}, if different.")
        ] = None,
        negative_text_field: Annotated[
            str | None, typer.Option(f"--{unwanted}-text-field", help=f"Text field of --{unwanted}, if different.")
        ] = None,
        on_error: OnErrorOption = OnError.stop,
        force: ForceOption = False,
    ) -> None:
        from glmforge_corpus.filter.linear.classifier import Features, Training
        from glmforge_corpus.filter.linear.training import split_seeds, train_on_seeds

        refuse_unwritable(out, force)
        console, rule = Console(), (high_precision, low_recall)
        sides = (
            read_documents(positive, positive_text_field or text_field, on_error.value),
            read_documents(negative, negative_text_field or text_field, on_error.value),
        )
        with work_progress("reading the seeds", 100_000) as show:
            texts = _texts(sides, show)
            seeds = split_seeds(*texts, held_out, seed, (wanted, unwanted))
        features = Features(bits, max_ngram, char_ngram, seed=seed)
        with work_progress(f"training on {units.counted(len(seeds.labels), 'document')}", 1):
            report = train_on_seeds(seeds, features, Training(passes, seed=seed), *rule, what)
        report.classifier.save(out)
        _print_report(console, out, seeds, report, rule)
        for side in sides:
            print_skipped(console, side)

    train.__name__, train.__doc__ = f"train_{what}", about
    return train


train_quality = _trainer(
    "quality",
    positives=("positive", "Wanted documents"),
    negatives=("negative", "Unwanted documents"),
    about="""Train a quality classifier, and choose the bounds of the buckets high, medium and low.

    Examples:

        glmforge data train-quality --positive good.jsonl --negative crawl.jsonl --out quality.npz

        glmforge data train-quality --positive books.jsonl --negative crawl.parquet --negative-text-field content
        --out quality.npz
    """,
)

train_toxicity = _trainer(
    "toxicity",
    positives=("toxic", "Toxic documents"),
    negatives=("harmless", "Harmless documents, preferably of the same kind and topics"),
    about="""Train a toxicity classifier; its score is the probability of the toxic label.

    Examples:

        glmforge data train-toxicity --toxic bad.jsonl --harmless good.jsonl --char-ngram 4 --out toxicity.npz

        glmforge data train-toxicity --toxic reports.parquet --toxic-text-field comment --harmless good.jsonl
        --out toxicity.npz
    """,
)


def _texts(sides: tuple[Corpus, Corpus], show: Show) -> tuple[Iterator[str], Iterator[str]]:
    """The texts of both sides, counted as they are read."""
    number = itertools.count(1)

    def counted(corpus: Corpus) -> Iterator[str]:
        for document in corpus:
            count = next(number)
            if count % 1000 == 0:
                show(count, units.counted(count, "document"))
            yield document.text

    return counted(sides[0]), counted(sides[1])


def _print_report(
    console: Console, out: Path, seeds: "Seeds", report: "TrainingReport", rule: tuple[float, float]
) -> None:
    left_out = f"skipped: {seeds.repeated:,} repeated, {seeds.conflicting:,} with both labels"
    console.print(f"{report.num_positive:,} positive, {report.num_negative:,} negative documents ({left_out})")
    rows = table("probability at least", "precision", "recall", "F1", "kept")
    for row in report.figures:
        numbers = (f"{value:.3f}" if value == value else "-" for value in (row.precision, row.recall, row.f1))
        rows.add_row(f"{row.threshold:.2f}", *numbers, f"{row.kept:.1%}")
    print_table(f"{report.num_held_out:,} held-out documents, AUC {report.auc:.4f}", rows, console)
    low, high = report.low, report.high
    console.print(f"bucket high: from {high.threshold:.4f}, precision {high.precision:.3f} (target: {rule[0]})")
    console.print(
        f"bucket low: below {low.threshold:.4f}, {1 - low.recall:.1%} of positives (at most {1 - rule[1]:.1%})"
    )
    console.print(f"{out}: written, fingerprint {report.classifier.fingerprint}", soft_wrap=True)
