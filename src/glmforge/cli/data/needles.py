"""`glmforge data needles`: facts hidden in long texts and questions about them; and the options of all such tests."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.cli.data.options import ForceOption
from glmforge.cli.signature import takes
from glmforge.config.needles import MAX_EXAMPLES, MAX_LENGTH, MAX_NEEDLES, MIN_LENGTH, NeedleTestsConfig
from glmforge.observe.units import counted
from glmforge.observe.work_progress import work_progress

if TYPE_CHECKING:
    from glmforge.data.needles.build import NeedleTests
    from glmforge.data.tokens.tokenizer import Tokenizer


class Task(StrEnum):
    """`NeedleTask` as Typer expects it."""

    single = "single"
    multi_key = "multi_key"
    multi_value = "multi_value"
    multi_query = "multi_query"
    variables = "variables"


class Values(StrEnum):
    """`NeedleValues` as Typer expects it."""

    numbers = "numbers"
    words = "words"
    uuids = "uuids"


class Format(StrEnum):
    """`NeedleFormat`, which cannot be imported before a command runs."""

    shard = "shard"
    questions = "questions"
    conversations = "conversations"


@dataclass(frozen=True, kw_only=True)
class NeedleOptions:
    """Which tests; what is not given is as in `NeedleTestsConfig`."""

    length: Annotated[
        list[int], typer.Option(min=MIN_LENGTH, max=MAX_LENGTH, help="Test length in tokens. Repeatable.")
    ]
    depth: Annotated[
        list[float] | None,
        typer.Option(
            min=0,
            max=1,
            help="Needle depth; 0: beginning, 1: end of the text. Repeatable.",
            show_default="0, 0.25, 0.5, 0.75, 1",
        ),
    ] = None
    task: Annotated[
        list[Task] | None, typer.Option(help="Task: what to retrieve. Repeatable.", show_default="single")
    ] = None
    values: Annotated[Values, typer.Option(help="Kind of needle.")] = Values.numbers
    num_needles: Annotated[
        int, typer.Option(min=2, max=MAX_NEEDLES, help="Number of needles in tasks with several.")
    ] = 4
    num_examples: Annotated[int, typer.Option(min=1, max=MAX_EXAMPLES, help="Tests per task, length and depth.")] = 2
    seed: Annotated[int, typer.Option(min=0, help="Random seed; the same seed gives the same tests.")] = 0
    haystack: Annotated[
        Path | None,
        typer.Option(metavar="PREFIX", help="Token shard with the haystack text.", show_default="made-up sentences"),
    ] = None


def tests_of(options: NeedleOptions, tokenizer: "Tokenizer") -> "NeedleTests":
    """The tests that the options ask for; what is given twice counts once."""
    from glmforge.data.needles.build import NeedleTests
    from glmforge.data.needles.haystack import make_haystack
    from glmforge.data.tokens.shards import TokenShard

    several = {
        "lengths": options.length,
        "depths": options.depth,
        "tasks": None if options.task is None else [task.value for task in options.task],
    }
    settings = {
        **{name: list(dict.fromkeys(given)) for name, given in several.items() if given},
        "values": options.values.value,
        "num_needles": options.num_needles,
        "num_examples": options.num_examples,
        "seed": options.seed,
    }
    shard = None if options.haystack is None else TokenShard(options.haystack)
    return NeedleTests(NeedleTestsConfig.model_validate(settings), tokenizer, make_haystack(shard, tokenizer))


@dataclass(frozen=True, kw_only=True)
class WriteOptions(NeedleOptions):
    """What is written where."""

    tokenizer: Annotated[Path, typer.Option(help="Tokenizer directory, for counting lengths.")]
    out: Annotated[Path, typer.Option(help="Shard prefix or JSONL file to write.")]
    format: Annotated[Format, typer.Option(help="Output: training documents, prompts with answers, or chats.")] = (
        Format.shard
    )
    force: ForceOption = False


@takes(WriteOptions)
def needles(options: WriteOptions) -> None:
    """Write tests of retrieval: facts hidden in long texts, and questions about them.

    Examples:

        glmforge data needles --tokenizer tokenizers/150k --length 32768 --num-examples 100 --out data/needles-32k

        glmforge data needles --tokenizer tokenizers/150k --length 4096 --length 65536 --task multi_key
        --haystack data/books --format questions --out needles.jsonl
    """
    from glmforge.data.needles.write import NeedleFormat, write_needles
    from glmforge.data.tokens.tokenizer import Tokenizer

    tests = tests_of(options, Tokenizer.load(options.tokenizer))
    with work_progress(f"writing {options.out}", first_line=100) as show:
        write_needles(
            tests,
            NeedleFormat(options.format.value),
            options.out,
            overwrite=options.force,
            progress=lambda done: show(done, f"{done:,} of {len(tests):,} tests"),
        )
    typer.echo(f"{options.out}: {counted(len(tests), 'test')}")
