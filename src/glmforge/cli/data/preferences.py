"""`glmforge data preferences`: pairs of answers looked at before a model learns from them."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from glmforge.cli.data.chat import Thinking
from glmforge.files import IN_TEXT, escaped

if TYPE_CHECKING:
    from glmforge.data.preferences.encode import EncodedAnswer, EncodedPair
    from glmforge.data.tokens.tokenizer import Tokenizer


def preferences(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files (.jsonl, .json, also .gz and .zst; .parquet) or directories of them."),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Directory of the tokenizer.")],
    show: Annotated[int, typer.Option(min=0, max=1_000_000, help="Pairs to print, with trained tokens in colour.")] = 0,
    thinking: Annotated[
        Thinking, typer.Option(help="Keep reasoning; auto: if an answer of the pair has any.")
    ] = Thinking.auto,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Longest side of a pair: seq_len of the run less 1.", show_default="no limit"),
    ] = None,
) -> None:
    """Show what a reward model or DPO would learn from: counts, lengths, and both answers of some pairs.

    Reads prompt, chosen and rejected as texts or messages, whole conversations that begin alike, and hh-rlhf's texts.
    All wrong records are counted and the first of them shown.

    Example:

        glmforge data preferences pairs.jsonl --tokenizer tokenizers/151k --show 3 --max-tokens 4095
    """
    from glmforge.config.chat import ChatConfig
    from glmforge.data.preferences.pairs import PairCounts, encode_records
    from glmforge.data.tokens.tokenizer import Tokenizer

    console = Console(soft_wrap=True, markup=False, highlight=False)
    loaded, counts = Tokenizer.load(tokenizer), PairCounts()
    config = ChatConfig.model_validate({"thinking": thinking.value, "max_tokens": max_tokens})
    lengths, categories, with_margin = list[tuple[int, int, int]](), dict[str, int](), 0
    for number, (place, pair) in enumerate(encode_records(files, loaded, config, counts)):
        if number < show:
            console.print(_shown(pair, place, loaded, marked=console.color_system is None))
        chosen, rejected = (len(side.ids) - pair.num_prompt for side in (pair.chosen, pair.rejected))
        lengths.append((pair.num_prompt, chosen, rejected))
        categories[pair.category] = categories.get(pair.category, 0) + 1
        with_margin += pair.margin > 0
    console.print(counts.summary())
    if lengths:
        _print_lengths(console, lengths)
    if len(categories) > 1:
        most = sorted(categories.items(), key=lambda item: -item[1])[:10]
        console.print("categories: " + escaped(", ".join(f"{name or 'none'} {n:,}" for name, n in most)))
    if with_margin:
        console.print(f"with a margin: {with_margin:,} pairs")
    if counts.problems:
        console.print("invalid records; first ones:")
        for problem in counts.problems:
            console.print(f"  {problem}")


def _print_lengths(console: Console, lengths: list[tuple[int, int, int]]) -> None:
    import numpy as np

    for name, of_side in zip(("prompt", "chosen", "rejected"), np.array(lengths).T, strict=True):
        median, tail, longest = np.percentile(of_side, (50, 95, 100)).astype(int).tolist()
        console.print(f"{name}: median {median:,}, 95th percentile {tail:,}, longest {longest:,} tokens")


def _shown(pair: "EncodedPair", place: str, tokenizer: "Tokenizer", *, marked: bool) -> Text:
    """The prompt once, then both answers, what is trained on in colour; between marks where there are no colours."""
    margin = f", margin {pair.margin:g}" if pair.margin else ""
    text = Text()
    text.append(f"--- {place}: prompt of {pair.num_prompt:,} tokens{margin}\n", "bold")
    text.append(_text(tokenizer, pair.chosen.ids[: pair.num_prompt].tolist()) + "\n", "dim")
    for name, side, colour in (("chosen", pair.chosen, "green"), ("rejected", pair.rejected, "red")):
        num_trained = int(side.is_trained.sum())
        text.append(f"--- {name}: {len(side.ids) - pair.num_prompt:,} tokens, {num_trained:,} trained on\n", "bold")
        _append_answer(text, side, pair.num_prompt, tokenizer, colour, marked=marked)
        text.append("\n")
    return text


def _append_answer(
    text: Text, side: "EncodedAnswer", first: int, tokenizer: "Tokenizer", colour: str, *, marked: bool
) -> None:
    tokens = zip(side.is_trained[first:].tolist(), side.ids[first:].tolist(), strict=True)
    for is_trained, part in itertools.groupby(tokens, lambda token: token[0]):
        piece = _text(tokenizer, [token for _, token in part])
        text.append(f"»{piece}«" if marked and is_trained else piece, colour if is_trained else "dim")


def _text(tokenizer: "Tokenizer", ids: list[int]) -> str:
    return escaped(tokenizer.decode(ids), keep=IN_TEXT)
