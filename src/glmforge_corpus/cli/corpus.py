"""`glmforge data run|extract|clean|dedup|decontaminate`: from raw files to a clean corpus."""

from pathlib import Path
from typing import Annotated, Any

import typer

from glmforge.cli.data.options import split_names
from glmforge.errors import DataError
from glmforge_corpus.cli.pipeline_command import RedoOption, Stages, names_of, pipeline_command, run_and_report


def run(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Overrides of the file's values, by dotted key.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Executor: local, slurm or ray.")] = "local",
    redo: RedoOption = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Export progress to Prometheus; 0: any free port. None: no exporter."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address that --metrics-port listens on.")] = "127.0.0.1",
) -> None:
    """Run a corpus pipeline: extract, clean, deduplicate, report. A killed run continues where it stopped.

    Examples:

        glmforge data run examples/corpus/pipeline.yaml

        glmforge data run pipeline.yaml output=/scratch/corpus executors.local.workers=4

        glmforge data run pipeline.yaml --executor slurm
    """
    from glmforge_corpus.pipeline.pipeline import load_pipeline

    loaded = load_pipeline(pipeline, overrides or [])
    if metrics_port is None:
        run_and_report(loaded, executor, redo=redo)
        return
    from glmforge_corpus.pipeline.exporter import exporting

    with exporting(loaded.output, loaded.name, metrics_host, metrics_port) as progress:
        run_and_report(loaded, executor, redo=redo, also=progress.show)


@pipeline_command
def extract(
    recall_first: Annotated[
        bool,
        typer.Option(
            "--recall-first", help="Web pages: keep all running text and comments, not only the main content."
        ),
    ] = False,
) -> Stages:
    """Convert raw files to documents and repair their Unicode; list what cannot be read in quarantine.jsonl.

    Examples:

        glmforge data extract crawl/*.warc.gz books/ --out documents

        glmforge data extract forum/*.warc.gz --out threads --recall-first
    """
    return Stages([{"clean": ["normalise"]}], reading={"recall_first": recall_first})


@pipeline_command
def clean(
    quality_threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Remove documents with a quality score below this (0 to 1).")
    ] = None,
    quality_model: Annotated[
        Path | None, typer.Option(help="Model of 'train-quality'; by default, a heuristic on text statistics.")
    ] = None,
    languages: Annotated[
        str, typer.Option(metavar="en,zh,...", help="Keep only these languages; 'code' is one of them.")
    ] = "",
    toxic_words: Annotated[
        Path | None, typer.Option(help="Directory of word lists, one file per language: remove toxic documents.")
    ] = None,
    mask: Annotated[
        bool, typer.Option(help="Mask e-mail addresses, phone numbers, card numbers and other personal data.")
    ] = True,
) -> Stages:
    """Filter documents: languages, Gopher, C4 and FineWeb rules, boilerplate, code rules, PII, toxicity, quality.

    The complete chain with all options is written to pipeline.yaml in the output: edit it and run it with 'data run'.

    Examples:

        glmforge data clean crawl/ --out clean --languages en,zh --quality-threshold 0.5

        glmforge data clean posts.jsonl --out clean --id-field post_id --metadata url,date

        glmforge data clean documents/ --out clean --quality-model quality.npz --quality-threshold 0.3
    """
    language: dict[str, Any] = {"keep": split_names(languages)} if languages else {}
    quality = {"model": None if quality_model is None else str(quality_model), "threshold": quality_threshold}
    blocks: list[Any] = ["normalise", {"language": language}, "boilerplate", *_RULES]
    if toxic_words is not None:
        blocks.append({"toxicity": {"lists": str(toxic_words), "remove": "severe"}})
    blocks += [*(["pii"] if mask else []), {"quality": quality}]
    options = {"language.keep": "--languages", "toxicity.lists": "--toxic-words"}
    options |= {"quality.model": "--quality-model", "quality.threshold": "--quality-threshold"}
    return Stages([{"clean": blocks}], options)


_RULES = ["gopher_quality", "gopher_repetition", "c4", "fineweb", "code"]


@pipeline_command
def dedup(
    threshold: Annotated[
        float, typer.Option(help="Jaccard similarity of shingles above which two documents are duplicates.")
    ] = 0.85,
    shingle: Annotated[
        str,
        typer.Option(
            metavar="mixed-5",
            help="Shingles: word-N, character-N, or mixed-N (words; letters in scripts without spaces).",
        ),
    ] = "mixed-5",
    check_only: Annotated[bool, typer.Option("--check-only", help="Report duplicates; remove nothing.")] = False,
    keep: Annotated[
        str,
        typer.Option(help="Copy to keep: first, longest, or a score name (keep the highest)."),
    ] = "first",
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Output of an earlier 'dedup --index': also remove its documents. Repeatable."),
    ] = None,
    index: Annotated[
        bool, typer.Option("--index", help="Store an index, so that later runs can deduplicate against this one.")
    ] = False,
) -> Stages:
    """Remove exact and near-duplicate documents.

    Examples:

        glmforge data dedup clean/documents --out unique

        glmforge data dedup clean/documents --out check --threshold 0.8 --check-only

        glmforge data dedup questions.jsonl --out unique --shingle character-8 --id-field id

        glmforge data dedup january/ --out january-unique --index

        glmforge data dedup february/ --out february-unique --against january-unique --index
    """
    minhash = {"threshold": threshold, "keep": keep, "check_only": check_only, **_shingles(shingle)}
    minhash |= {"index": [str(_minhash_stage(path)) for path in against or []]}
    minhash |= {"store": "shingles" if index else "nothing"}
    options = {
        "minhash.shingle": "--shingle",
        "minhash.n": "--shingle",
        "minhash.threshold": "--threshold",
        "minhash.keep": "--keep",
        "minhash.index": "--against",
    }
    return Stages([{"exact": {"check_only": check_only}}, {"minhash": minhash}], options)


def _shingles(text: str) -> dict[str, Any]:
    """The stage's options for "mixed-5"."""
    unit, dash, size = text.partition("-")
    if not unit or not dash or not size.isascii() or not size.isdigit():
        raise DataError(f"--shingle {text}: must be a unit and a number, such as mixed-5, word-5 or character-8")
    return {"shingle": unit, "n": int(size)}


def _minhash_stage(output: Path) -> Path:
    """Where a run of `dedup` stores what others compare with."""
    found = sorted((output / ".work").glob("*-minhash"))
    if not found:
        raise DataError(f"--against {output}: not the output of 'glmforge data dedup --index'")
    return found[-1]


@pipeline_command
def decontaminate(
    against: Annotated[
        list[Path],
        typer.Option(help="Evaluation set: JSONL, JSON, CSV, Parquet, or a .zip or directory of these. Repeatable."),
    ],
) -> Stages:
    """Remove documents that contain items of evaluation sets, and report which items were found.

    Example:

        glmforge data decontaminate clean/documents --against gsm8k-test.jsonl --against math-test.jsonl --out safe
    """
    sets = [{"name": name, "path": str(path)} for name, path in zip(names_of(against), against, strict=True)]
    return Stages([{"decontaminate": {"against": sets}}], {"decontaminate.against": "--against"})
