"""`glmforge data run` and the commands that are a pipeline of one purpose."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.errors import DataError
from glmforge_corpus.cli.step_progress import step_progress

if TYPE_CHECKING:
    from glmforge_corpus.pipeline.pipeline import Pipeline

ExecutorOption = Annotated[str, typer.Option(help="Where tasks run: local, slurm, ray.")]
WorkersOption = Annotated[int, typer.Option(min=0, help="Tasks at a time on this machine; 0: one per core.")]
RedoOption = Annotated[
    bool, typer.Option("--redo", help="Throw away finished work that was made with other options, instead of refusing.")
]


def run(
    pipeline: Annotated[Path, typer.Argument(help="Pipeline file (YAML).")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the file, with dotted keys.")
    ] = None,
    executor: ExecutorOption = "local",
    redo: RedoOption = False,
) -> None:
    """Run a corpus pipeline: extract, clean, deduplicate, and report. Killed, it goes on where it was.

    Examples:

        glmforge data run examples/corpus/pipeline.yaml

        glmforge data run pipeline.yaml output=/scratch/corpus executors.local.workers=4

        glmforge data run pipeline.yaml --executor slurm
    """
    from glmforge_corpus.pipeline.pipeline import load_pipeline

    run_and_tell(load_pipeline(pipeline, overrides or []), executor, redo=redo)


InputsArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Files and directories: text, JSONL, Parquet, HTML, WARC, PDF, told by suffix, also under .gz and .zst. "
        "For repositories and issues write a pipeline file."
    ),
]
OutOption = Annotated[
    Path,
    typer.Option(help="Directory to write: documents/, report.html, quarantine.jsonl. The same command continues it."),
]
TextFieldOption = Annotated[str, typer.Option(help="JSON field or Parquet column that holds the text.")]
IdFieldOption = Annotated[
    str | None,
    typer.Option(help="JSON field or Parquet column with the id; file and line make one by default."),
]
MetadataOption = Annotated[
    str,
    typer.Option(
        metavar="url,date,...", help="JSON fields or Parquet columns to keep as metadata; '*': all but text and id."
    ),
]


def extract(
    inputs: InputsArgument,
    out: OutOption,
    text_field: TextFieldOption = "text",
    recall_first: Annotated[
        bool, typer.Option("--recall-first", help="Web pages: keep all running text, comments too, not one main part.")
    ] = False,
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Make documents of raw files, with Unicode repaired; what cannot be read is put aside and listed.

    Examples:

        glmforge data extract crawl/*.warc.gz books/ --out documents

        glmforge data extract forum/*.warc.gz --out threads --recall-first
    """
    pipeline = inline_pipeline(
        inputs,
        out,
        [{"clean": ["normalise"]}],
        fields=(text_field, id_field, metadata),
        workers=workers,
        reading={"recall_first": recall_first},
    )
    run_and_tell(pipeline, redo=redo)


def clean(
    inputs: InputsArgument,
    out: OutOption,
    quality_threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Remove documents with a lower quality score (0 to 1).")
    ] = None,
    quality_model: Annotated[
        Path | None, typer.Option(help="Model of 'train-quality'; a heuristic on text statistics without one.")
    ] = None,
    languages: Annotated[str, typer.Option(metavar="en,zh,...", help="Keep these languages only; 'code' is one.")] = "",
    toxic_words: Annotated[
        Path | None, typer.Option(help="Directory of word lists, a file per language: remove toxic documents.")
    ] = None,
    mask: Annotated[bool, typer.Option(help="Mask e-mail addresses, phone numbers, card numbers and the like.")] = True,
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Filter documents: languages, Gopher, C4 and FineWeb rules, boilerplate, code rules, PII, toxicity, quality.

    The chain in full, with every option, is in pipeline.yaml of the output: edit it and run it with 'data run'.

    Examples:

        glmforge data clean crawl/ --out clean --languages en,zh --quality-threshold 0.5

        glmforge data clean posts.jsonl --out clean --id-field post_id --metadata url,date

        glmforge data clean documents/ --out clean --quality-model quality.npz --quality-threshold 0.3
    """
    language: dict[str, Any] = {"keep": languages.replace(" ", "").split(",")} if languages else {}
    quality = {"model": None if quality_model is None else str(quality_model), "threshold": quality_threshold}
    blocks: list[Any] = ["normalise", {"language": language}, "boilerplate", *_RULES]
    if toxic_words is not None:
        blocks.append({"toxicity": {"lists": str(toxic_words), "remove": "severe"}})
    blocks += [*(["pii"] if mask else []), {"quality": quality}]
    options = {"language.keep": "--languages", "toxicity.lists": "--toxic-words"}
    options |= {"quality.model": "--quality-model", "quality.threshold": "--quality-threshold"}
    run_and_tell(
        inline_pipeline(
            inputs, out, [{"clean": blocks}], fields=(text_field, id_field, metadata), workers=workers, options=options
        ),
        redo=redo,
    )


_RULES = ["gopher_quality", "gopher_repetition", "c4", "fineweb", "code"]


def dedup(
    inputs: InputsArgument,
    out: OutOption,
    threshold: Annotated[
        float, typer.Option(help="Jaccard similarity of shingles from which two documents are the same.")
    ] = 0.85,
    shingle: Annotated[
        str,
        typer.Option(
            metavar="mixed-5",
            help="What is compared: word-N, character-N, or mixed-N: words, and letters in scripts without spaces.",
        ),
    ] = "mixed-5",
    check_only: Annotated[bool, typer.Option("--check-only", help="Report duplicates; remove nothing.")] = False,
    keep: Annotated[
        str, typer.Option(help="Which copy is kept: first, longest, or the one with the highest score of a name.")
    ] = "first",
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Output of an earlier 'dedup --index' whose documents count as seen; repeatable."),
    ] = None,
    index: Annotated[bool, typer.Option("--index", help="Keep what later runs need to compare with this one.")] = False,
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Remove documents that are there twice, exactly or nearly.

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
    stages: list[dict[str, Any]] = [{"exact": {"check_only": check_only}}, {"minhash": minhash}]
    options = {
        "minhash.shingle": "--shingle",
        "minhash.n": "--shingle",
        "minhash.threshold": "--threshold",
        "minhash.keep": "--keep",
        "minhash.index": "--against",
    }
    run_and_tell(
        inline_pipeline(inputs, out, stages, fields=(text_field, id_field, metadata), workers=workers, options=options),
        redo=redo,
    )


def _shingles(text: str) -> dict[str, Any]:
    """The stage's options for "mixed-5"."""
    unit, dash, size = text.partition("-")
    if not unit or not dash or not size.isascii() or not size.isdigit():
        raise DataError(f"--shingle {text}: must be a unit and a number, such as mixed-5, word-5 or character-8")
    return {"shingle": unit, "n": int(size)}


def _minhash_stage(output: Path) -> Path:
    """Where a run of `dedup` keeps what others compare with."""
    found = sorted((output / ".work").glob("*-minhash"))
    if not found:
        raise DataError(f"--against {output}: not the output of 'glmforge data dedup --index'")
    return found[-1]


def decontaminate(
    inputs: InputsArgument,
    out: OutOption,
    against: Annotated[
        list[Path],
        typer.Option(help="Evaluation set: JSONL, JSON, CSV, Parquet, or a .zip or directory of these; repeatable."),
    ],
    text_field: TextFieldOption = "text",
    id_field: IdFieldOption = None,
    metadata: MetadataOption = "",
    workers: WorkersOption = 0,
    redo: RedoOption = False,
) -> None:
    """Remove documents that hold items of evaluation sets, and report which items stood where.

    Example:

        glmforge data decontaminate clean/documents --against gsm8k-test.jsonl --against math-test.jsonl --out safe
    """
    sets = [{"name": name, "path": str(path)} for name, path in zip(_names_of(against), against, strict=True)]
    stages, options = [{"decontaminate": {"against": sets}}], {"decontaminate.against": "--against"}
    run_and_tell(
        inline_pipeline(inputs, out, stages, fields=(text_field, id_field, metadata), workers=workers, options=options),
        redo=redo,
    )


def inline_pipeline(
    inputs: Sequence[Path],
    out: Path,
    stages: Sequence[dict[str, Any]],
    *,
    fields: tuple[str, str | None, str] = ("text", None, ""),
    workers: int = 0,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
    reading: Mapping[str, Any] | None = None,
) -> "Pipeline":
    """The pipeline that a command stands for.

    Args:
        inputs: what it reads.
        stages: what comes after reading, in the form of a pipeline file.
        fields: the inputs' text_field, id_field and metadata, the last as `--metadata` gives it.
        options: key of a stage or block -> the option that gives it, by which errors are to call it:
            {"minhash.threshold": "--threshold"}.
        reading: further options of the stage that reads.
    """
    from glmforge_corpus.pipeline.pipeline import pipeline_of

    text_field, id_field, metadata = fields
    of_each = {"text_field": text_field, "id_field": id_field, "metadata": _split_names(metadata)}
    sources = [
        {"source": name, "path": str(path), **of_each} for name, path in zip(_names_of(inputs), inputs, strict=True)
    ]
    value = {
        "output": str(out),
        "name": out.name,
        "seed": seed,
        "stages": [{"extract": {"inputs": sources, **(reading or {})}}, *stages],
        "executors": {"local": {"workers": workers}},
    }
    return pipeline_of(value, "command line", options or {})


def _split_names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _names_of(paths: Sequence[Path]) -> list[str]:
    """What files are called in reports and ids: short, and by their whole paths where that is not enough."""
    short = [path.name.split(".")[0] or "input" for path in paths]
    return [name if short.count(name) == 1 else path.as_posix() for name, path in zip(short, paths, strict=True)]


def run_and_tell(pipeline: "Pipeline", executor: str = "local", *, redo: bool = False) -> dict[str, Any]:
    """Run a pipeline, show how far it is, and say what came out."""
    from glmforge_corpus.cli.outcome import outcome
    from glmforge_corpus.make import make_corpus, page_of

    with step_progress() as show:
        report = make_corpus(pipeline, executor, redo=redo, progress=show)
    for line in outcome(report, pipeline.output, page_of(pipeline.output)):
        typer.echo(line)
    if not report["stages"][-1]["statistics"]["written"]["documents"]:
        raise DataError(f"{pipeline.output}: no document is left: {page_of(pipeline.output)} says where they went")
    return report
