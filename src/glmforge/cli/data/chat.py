"""`glmforge data chat`: conversations looked at, and written as a token shard with loss weights."""

import itertools
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from glmforge.cli.data.options import ForceOption
from glmforge.files import IN_TEXT, escaped

if TYPE_CHECKING:
    from glmforge.config.chat import ChatConfig
    from glmforge.data.chat.encode import EncodedConversation
    from glmforge.data.chat.tokenize import ChatCounts, ChatReport
    from glmforge.data.tokens.tokenizer import Tokenizer


class Turns(StrEnum):
    """Which assistant turns are trained on."""

    all = "all"
    last = "last"


class Thinking(StrEnum):
    """Whether conversations are rendered with reasoning."""

    auto = "auto"
    on = "on"
    off = "off"


class Overlong(StrEnum):
    """What becomes of conversations that are too long."""

    refuse = "refuse"
    drop = "drop"
    cut = "cut"


def chat(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files (.jsonl, .json, also .gz and .zst; .parquet) or directories of them."),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Directory of the tokenizer.")],
    show: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Documents to print, with trained tokens in colour.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX", help="Shard to write: PREFIX.bin, .idx, .json and .loss. Without it, only inspect."
        ),
    ] = None,
    turns: Annotated[Turns, typer.Option(help="Which assistant turns are trained on.")] = Turns.all,
    thinking: Annotated[
        Thinking, typer.Option(help="Keep reasoning; auto: if the conversation has any.")
    ] = Thinking.auto,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest document, normally the seq_len of the run.", show_default="no limit"),
    ] = None,
    overlong: Annotated[
        Overlong, typer.Option(help="Longer documents: refuse the file, drop them, or keep the turns that fit.")
    ] = Overlong.refuse,
    max_wrong: Annotated[int, typer.Option(min=0, help="Number of invalid records that --out may skip.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Number of encoding processes.")] = 1,
    force: ForceOption = False,
) -> None:
    """Show which parts of conversations are trained on, and write them as a token shard with loss weights.

    Reads OpenAI messages, ShareGPT, Alpaca and prompt/completion records, distinguished by their fields. All wrong
    records are counted and the first of them shown.

    Examples:

        glmforge data chat support.jsonl --tokenizer tokenizers/151k --show 3 --max-tokens 8192 --overlong cut

        glmforge data chat support.jsonl --tokenizer tokenizers/151k --out data/support --max-tokens 8192 --workers 8
    """
    from glmforge.config.chat import ChatConfig

    config = ChatConfig.model_validate(
        {
            "turns": turns.value,
            "thinking": thinking.value,
            "max_tokens": max_tokens,
            "overlong": overlong.value,
            "max_wrong": max_wrong,
        }
    )
    console = Console(soft_wrap=True, markup=False, highlight=False)
    if show or out is None:
        _inspect(console, files, tokenizer, config, show, workers, until_shown=out is not None)
    if out is not None:
        _write(console, files, tokenizer, config, out, workers, force=force)


def _inspect(
    console: Console,
    files: list[Path],
    tokenizer_dir: Path,
    config: "ChatConfig",
    num_shown: int,
    num_workers: int,
    *,
    until_shown: bool,
) -> None:
    """Print the first documents, and unless it goes on `until_shown` only, what all of the files come to."""
    from glmforge.data.chat.tokenize import ChatReport, encode_files
    from glmforge.data.tokens.tokenizer import Tokenizer

    tokenizer, report, lengths, left = Tokenizer.load(tokenizer_dir), ChatReport(), list[int](), num_shown
    as_told = config if config.max_tokens is None or config.overlong != "refuse" else _dropping(config)
    for encoded in encode_files(files, tokenizer_dir, as_told, num_workers):
        for document, place in itertools.islice(zip(encoded.documents, encoded.places, strict=True), left):
            console.print(_shown(document, place, tokenizer, marked=console.color_system is None))
            left -= 1
        if until_shown and not left:
            return
        report.add(encoded)
        lengths += [len(document.ids) for document in encoded.documents]
    if not until_shown:
        _print_report(console, report, lengths, config)


def _dropping(config: "ChatConfig") -> "ChatConfig":
    """A look does not stop at what writing would refuse."""
    return config.model_copy(update={"overlong": "drop"})


def _shown(document: "EncodedConversation", place: str, tokenizer: "Tokenizer", *, marked: bool) -> Text:
    """The document's text, what is trained on in green; between marks where there are no colours."""
    text = Text()
    text.append(f"--- {place}: {len(document.ids):,} tokens, {document.num_trained:,} trained on\n", "bold")
    pairs = zip(document.weights.tolist(), document.ids.tolist(), strict=True)
    for weight, part in itertools.groupby(pairs, lambda pair: pair[0]):
        piece = escaped(tokenizer.decode([token for _, token in part]), keep=IN_TEXT)
        if weight:
            note = "" if weight == 1 else f"(weight {weight:g})"
            text.append(f"»{note}{piece}«" if marked else f"{note}{piece}", "green")
        else:
            text.append(piece, "dim")
    return text.append("\n")


def _print_report(console: Console, report: "ChatReport", lengths: list[int], config: "ChatConfig") -> None:
    import numpy as np

    console.print(report.counts.summary())
    if lengths:
        median, tail, longest = np.percentile(lengths, (50, 95, 100)).astype(int).tolist()
        console.print(f"lengths of documents: median {median:,}, 95th percentile {tail:,}, longest {longest:,} tokens")
    lost = report.counts.dropped + report.counts.cut
    if lost:
        handling = {"refuse": "--out would refuse the first of them", "drop": "dropped", "cut": "cut or dropped"}
        console.print(
            f"{lost:,} longer than {config.max_tokens:,} tokens ({handling[config.overlong]}), which loses "
            f"{report.counts.tokens_cut:,} tokens"
        )
    _print_problems(console, report)


def _print_problems(console: Console, report: "ChatReport") -> None:
    if report.problems:
        console.print("invalid records; first ones:")
        for problem in report.problems:
            console.print(f"  {problem}")


def _write(
    console: Console,
    files: list[Path],
    tokenizer: Path,
    config: "ChatConfig",
    out: Path,
    num_workers: int,
    *,
    force: bool,
) -> None:
    from glmforge.data.chat.tokenize import tokenize_chat
    from glmforge.data.files import refuse_unwritable
    from glmforge.data.tokens.shards import loss_path, shard_paths
    from glmforge.observe.work_progress import MEGABYTE, work_progress

    for path in (*shard_paths(out), loss_path(out)):
        refuse_unwritable(path, force)
    with work_progress(f"encoding {out}", 100 * MEGABYTE) as show:

        def tell(counts: "ChatCounts") -> None:
            show(counts.text_bytes, f"{counts.summary()}, {counts.text_bytes / MEGABYTE:,.0f} MB")

        _, report = tokenize_chat(
            files, tokenizer, out, config, num_workers=num_workers, overwrite=force, progress=tell
        )
    console.print(f"{escaped(str(out))}: {report.counts.summary()}")
    _print_problems(console, report)
