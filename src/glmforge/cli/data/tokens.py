"""`glmforge data tokenizer|fertility|tokenize|pack`: tokenizers and token shards from text, and their packing."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.data.options import ForceOption, OnError, OnErrorOption, TextFieldOption, print_skipped
from glmforge.cli.tables import print_table, table
from glmforge.data.documents.read import Corpus, read_documents
from glmforge.data.files import refuse_unwritable, write_whole
from glmforge.data.tokens.special import MIN_VOCAB_SIZE
from glmforge.errors import DataError
from glmforge.observe.units import counted
from glmforge.observe.work_progress import MEGABYTE, Show, work_progress

if TYPE_CHECKING:
    from glmforge.data.tokens.shards import ShardInfo
    from glmforge.data.tokens.text_chunks import TextChunk
    from glmforge.data.tokens.tokenize import EncodingProgress

_FIRST_LINE = 100 * MEGABYTE  # of text, or 100 million tokens, until a plain line tells how far a command is


CorpusArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Files (.txt, .jsonl, .jsonl.gz, .jsonl.zst, .parquet), directories of these or of source files, or "
        "output of 'glmforge data run'."
    ),
]
OptionalCorpusArgument = Annotated[
    list[Path] | None,
    typer.Argument(help="Files and directories, as for 'glmforge data tokenize'.", show_default="see --mixture"),
]


def tokenizer(
    vocab_size: Annotated[
        int, typer.Option(min=MIN_VOCAB_SIZE, help="Vocabulary size, including 256 bytes and 36 special tokens.")
    ],
    out: Annotated[Path, typer.Option(help="Directory to write; transformers' AutoTokenizer can load it.")],
    corpus: OptionalCorpusArgument = None,
    mixture: Annotated[
        Path | None, typer.Option(help="YAML file with sources (name, paths, weight), instead of CORPUS.")
    ] = None,
    sample_bytes: Annotated[
        float | None,
        typer.Option(min=1, max=1e18, help="Sample size in bytes, such as 2e9.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    pad_to: Annotated[
        int | None, typer.Option(min=1, help="Rows of the model's embedding, recorded with the tokenizer.")
    ] = None,
    pad_multiple: Annotated[
        int,
        typer.Option(min=1, help="Round the rows of the embedding up to a multiple of this; --pad-to overrides it."),
    ] = 1,
    text_field: TextFieldOption = "text",
    on_error: OnErrorOption = OnError.stop,
    force: ForceOption = False,
) -> None:
    """Train a byte-level BPE tokenizer in GLM's form.

    Examples:

        glmforge data tokenizer books.jsonl.zst src/ --vocab-size 32768 --out tokenizers/32k

        glmforge data tokenizer --mixture mixture.yaml --sample-bytes 2e9 --vocab-size 151365 --pad-multiple 128
        --out tokenizers/151k
    """
    from glmforge.data.tokens.bpe import train_on_chunks
    from glmforge.data.tokens.sample import plan_sample, sampled_chunks
    from glmforge.data.tokens.tokenizer_file import TOKENIZER_FILE

    console = Console()
    refuse_unwritable(out / TOKENIZER_FILE, force)
    sources = _sources(corpus or [], mixture, text_field, on_error)
    started = time.perf_counter()
    shares = None
    if sample_bytes is not None:
        with work_progress("measuring the sources", _FIRST_LINE) as show:
            shares = plan_sample(sources, int(sample_bytes), seed, progress=_megabytes(show))
        for share in shares:
            short = "" if share.num_bytes_there > share.num_bytes_wanted else ", everything available"
            console.print(f"  {share.name}: {share.num_bytes:,} of {share.num_bytes_there:,} bytes{short}")
    elif mixture is not None:
        raise DataError("--mixture: weights are shares of a sample; set its size with --sample-bytes")
    padded = pad_to or -(-vocab_size // pad_multiple) * pad_multiple
    with work_progress(f"learning {vocab_size:,} tokens", _FIRST_LINE) as show:
        trained = train_on_chunks(
            _counted(sampled_chunks(sources, shares), _megabytes(show)),
            vocab_size,
            out,
            overwrite=force,
            padded_vocab_size=padded if padded != vocab_size else None,
        )
    for _, documents, _ in sources:
        print_skipped(console, documents)
    seconds = time.perf_counter() - started
    rows = f", embedding of {padded:,} rows" if padded != vocab_size else ""
    console.print(f"{out}: {trained.vocab_size:,} tokens{rows}, {seconds:.1f} s", soft_wrap=True)


def _megabytes(show: Show) -> Callable[[int], None]:
    """Told how many bytes of text more were read, it shows how many that makes."""
    total = 0

    def add(num_bytes: int) -> None:
        nonlocal total
        total += num_bytes
        show(total, f"{total / MEGABYTE:,.0f} MB of text read")

    return add


def _counted(chunks: "Iterable[TextChunk]", progress: Callable[[int], None]) -> "Iterator[TextChunk]":
    for chunk in chunks:
        progress(chunk.num_bytes)
        yield chunk


def _sources(
    paths: list[Path], mixture: Path | None, text_field: str, on_error: OnError
) -> list[tuple[str, Corpus, float]]:
    """(name, corpus, weight) of what a tokenizer learns from."""
    from glmforge.data.tokens.sample import load_mixture

    if bool(paths) == (mixture is not None):
        raise DataError("corpus: pass files and directories, or --mixture with a file that lists them")
    if mixture is None:
        return [("corpus", read_documents(paths, text_field, on_error.value), 1.0)]
    sources = load_mixture(mixture).sources
    return [(s.name, read_documents(list(s.paths), text_field, on_error.value), s.weight) for s in sources]


def fertility(
    corpus: CorpusArgument,
    tokenizer: Annotated[list[Path], typer.Option(help="Tokenizer directory. Repeatable, to compare several.")],
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    html: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    text_field: TextFieldOption = "text",
    on_error: OnErrorOption = OnError.stop,
) -> None:
    """Report how well tokenizers fit a corpus: bytes per token and tokens per word, by language.

    Documents of the corpus pipeline are grouped by their language, others by the file or directory named here.

    Example:

        glmforge data fertility docs/ code/ --tokenizer tokenizers/32k --tokenizer tokenizers/151k --html fit.html
    """
    from glmforge.data.tokens.fertility import (
        default_name,
        fertility_page,
        fertility_table,
        measure_fertility,
        vocabulary_table,
    )
    from glmforge.data.tokens.tokenizer import Tokenizer

    console = Console()
    for path in filter(None, (out, html)):
        refuse_unwritable(path, overwrite=True)
    loaded = {default_name(path, tokenizer): Tokenizer.load(path) for path in tokenizer}
    corpora = [(path.name, read_documents(path, text_field, on_error.value)) for path in corpus]
    with work_progress("encoding", _FIRST_LINE) as show:
        progress = _megabytes(show)
        reports = [measure_fertility(one, corpora, name, progress) for name, one in loaded.items()]
    for rows in (fertility_table(reports), vocabulary_table(reports)):
        _print_table(console, rows)
    for _, documents in corpora:
        print_skipped(console, documents)
    if out is not None:
        content = json.dumps([report.to_json() for report in reports], indent=1, ensure_ascii=False)
        write_whole(out, f"{content}\n".encode())
    if html is not None:
        write_whole(html, fertility_page(reports))


def _print_table(console: Console, rows: list[list[str]]) -> None:
    shown = table(*rows[0], in_words=rows[0][:1])
    for row in rows[1:]:
        shown.add_row(*map(escape, row))
    print_table("", shown, console)


def tokenize(
    corpus: CorpusArgument,
    tokenizer: Annotated[Path, typer.Option(help="Directory of the tokenizer.")],
    out: Annotated[Path, typer.Option(metavar="PREFIX", help="Shard to write: PREFIX.bin, .idx and .json.")],
    workers: Annotated[int, typer.Option(min=1, help="Number of encoding processes.")] = 1,
    text_field: TextFieldOption = "text",
    held_out: Annotated[
        float, typer.Option(metavar="FRACTION", help="Fraction of documents to write to PREFIX-held-out instead.")
    ] = 0.0,
    verify: Annotated[
        float, typer.Option(metavar="SHARE", help="Fraction of documents to re-encode with 'tokenizers' and compare.")
    ] = 0.0,
    on_error: OnErrorOption = OnError.stop,
    force: ForceOption = False,
) -> None:
    """Encode a corpus into a token shard in Megatron's .bin/.idx format.

    Examples:

        glmforge data tokenize books.jsonl.zst --tokenizer tokenizers/32k --out data/books --workers 8

        glmforge data tokenize src/ --tokenizer tokenizers/32k --out data/code --held-out 0.01 --on-error skip
    """
    from glmforge.data.tokens.shards import shard_paths
    from glmforge.data.tokens.text_chunks import HeldOut
    from glmforge.data.tokens.tokenize import tokenize_corpus

    console = Console()
    documents = read_documents(corpus, text_field, on_error.value)
    if not 0 <= held_out < 1:
        raise DataError(f"held-out fraction {held_out}: must be at least 0 and less than 1")
    parts = {f"{out}-held-out": HeldOut(held_out, True)} if held_out else {}
    parts |= {str(out): HeldOut(held_out, False)}
    for path in (path for prefix in parts for path in shard_paths(prefix)):
        refuse_unwritable(path, force)
    for prefix, part in parts.items():
        started = time.perf_counter()
        with work_progress(f"encoding {prefix}", _FIRST_LINE) as show:
            info = tokenize_corpus(
                documents,
                tokenizer,
                prefix,
                num_workers=workers,
                progress=_told_to(show, started),
                source=" ".join(map(str, corpus)),
                overwrite=force,
                selection=part if held_out else None,
                verify=verify,
            )
        console.print(f"{prefix}: {_summary(info, time.perf_counter() - started)}", soft_wrap=True)
    print_skipped(console, documents)


def pack(
    shard: Annotated[Path, typer.Argument(metavar="PREFIX", help="Token shard: PREFIX.bin and .idx.")],
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens per row: the seq_len of a phase with packing: best_fit.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the packing; the run's data.packing_dir.", show_default="the shard's"),
    ] = None,
) -> None:
    """Compute the best-fit packing of a shard ahead of the run that needs it, or verify the one that is stored.

    Example:

        glmforge data pack data/books --seq-len 4096
    """
    from glmforge.data.stream.packing import ensure_packing
    from glmforge.data.tokens.shards import TokenShard

    console, shares = Console(), list[float]()
    started = time.perf_counter()
    tokens = TokenShard(shard)
    with work_progress(f"packing {shard}", _FIRST_LINE) as show:

        def show_share(share: float) -> None:
            shares.append(share)
            show(share * tokens.num_tokens, f"{share:.0%}")

        packing = ensure_packing(tokens, seq_len, out, progress=show_share)
    counts, seconds = packing.counts, time.perf_counter() - started
    done = "packed" if shares else "already stored, verified"
    console.print(
        f"{packing.path}: {counts.num_rows:,} rows of {counts.seq_len:,} tokens, {counts.utilisation:.4%} full, "
        f"{done} in {seconds:.1f} s",
        soft_wrap=True,
    )
    console.print(
        f"{counts.num_cut:,} of {counts.num_documents:,} documents are longer than a row and cut; packing: truncate "
        f"would cut {counts.num_cut_by_truncation:,}",
        soft_wrap=True,
    )


def _told_to(show: Show, started: float) -> "Callable[[EncodingProgress], None]":
    def tell(progress: "EncodingProgress") -> None:
        megabytes = progress.num_text_bytes / MEGABYTE
        counts = f"{counted(progress.num_documents, 'document')}, {progress.num_tokens:,} tokens, {megabytes:,.0f} MB"
        show(progress.num_text_bytes, f"{counts}, {megabytes / (time.perf_counter() - started):.1f} MB/s")

    return tell


def _summary(info: "ShardInfo", seconds: float) -> str:
    return (
        f"{counted(info.num_documents, 'document')}, {counted(info.num_tokens, 'token')}, "
        f"{info.bytes_per_token:.2f} bytes per token, {info.num_text_bytes / seconds / MEGABYTE:.1f} MB/s"
    )
