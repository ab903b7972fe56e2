"""`glmforge evaluate MODEL --benchmark NAMES`: the score of a model on benchmarks."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from glmforge.cli.data.options import ForceOption
from glmforge.cli.evaluate.model import ModelOptions, benchmark_names, opened, refuse_ranks, server_of
from glmforge.cli.evaluate.results import compare
from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from glmforge.evaluate.benchmarks.catalog import Benchmark
    from glmforge.evaluate.benchmarks.harness import Asking
    from glmforge.evaluate.benchmarks.model import Generation
    from glmforge.evaluate.result import Score


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    """Which model, which benchmarks, and how they are asked."""

    benchmark: Annotated[
        list[str], typer.Option("--benchmark", "-b", help="Names, with commas between them, or a task's YAML file.")
    ]
    out: Annotated[Path, typer.Option("--out", "-o", help="Directory for the result; run again to resume.")]
    data: Annotated[Path | None, typer.Option(help="Directory with the benchmarks' files.")] = None
    chat: Annotated[bool, typer.Option(help="Ask through the chat template.")] = False
    thinking: Annotated[bool, typer.Option(help="With --chat: let the model reason before it answers.")] = True
    system: Annotated[str, typer.Option(help="With --chat: the system message.")] = ""
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="Examples before each question.")] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many items of each benchmark.")] = None
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", min=1, help="Answers to each question.")] = 1
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 always picks the most likely token.")] = None
    top_p: Annotated[float | None, typer.Option(help="Sample from this share of the probability.")] = None
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample from this many of the likeliest tokens.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same answers.")] = 0
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would take, and end.")] = False
    unsafe_code: Annotated[bool, typer.Option(help="Run programs without a sandbox where there is none.")] = False
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Evaluate each checkpoint of the run MODEL when it appears, into OUT/step-N."),
    ] = False
    once: Annotated[bool, typer.Option("--once", help="With --watch: only the checkpoints that are there now.")] = False
    compare_baseline: Annotated[
        Path | None, typer.Option(help="An earlier result to compare with, item by item.", metavar="RESULT")
    ] = None
    force: ForceOption = False


@takes(Options)
def benchmarks(options: Options) -> None:
    """Score a model on benchmarks; every reply is kept, and a stopped evaluation resumes.

    Known benchmarks read the authors' own files from --data. Other tasks of lm-evaluation-harness load their data from
    the hub. Before the start it prints the number of requests and tokens, and about how long they take.

    Examples:

        glmforge evaluate exports/glm --benchmark mmlu,gsm8k --data data/eval --out results/glm

        glmforge evaluate runs/sft --benchmark math500 --chat --num-samples 4 --temperature 1 --data data/eval --out r

        glmforge evaluate http://localhost:8000/v1 --model-name glm --benchmark gsm8k --chat --data data/eval --out r

        glmforge evaluate benchmarks --watch runs/glm --benchmark mmlu --data data/eval --out runs/glm/evaluations

        torchrun --nproc-per-node 4 -m glmforge evaluate runs/glm --benchmark mmlu --data d --out r --parallel ep=4
    """
    with needed_for("evaluate"):
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks import scorers
    from glmforge.evaluate.benchmarks.catalog import open_benchmark
    from glmforge.evaluate.result import read_result

    names = benchmark_names(options.benchmark)
    if options.system and not options.chat:
        raise GlmforgeError("--system: a system message needs --chat")
    if server_of(options) is not None and options.watch:
        raise GlmforgeError("--watch: needs the directory of a run as the model, not a URL")
    if options.compare_baseline is not None:
        read_result(options.compare_baseline)
    scorers.unsafe_code = options.unsafe_code
    chosen = [open_benchmark(name, options.data) for name in names]
    if options.watch:
        _watch(options, chosen)
    else:
        _evaluate(options, chosen)


def _watch(options: Options, chosen: "Sequence[Benchmark]") -> None:
    from glmforge.evaluate.run import settings_of
    from glmforge.evaluate.watch import watch

    refuse_ranks("--watch")

    def evaluate(checkpoint: Path, out: Path) -> None:
        console.print(f"{checkpoint.name}:", highlight=False)
        _evaluate(replace(options, model=str(checkpoint), out=out), chosen)

    console = Console()
    settings = settings_of(*_asked(options), chosen)
    number = watch(Path(options.model), options.out, settings, evaluate, once=options.once)
    console.print(f"{number:,} checkpoints evaluated; results are in {options.out}", markup=False, highlight=False)


def _asked(options: Options) -> "tuple[Asking, Generation]":
    """How the items are asked and answered: the options of the same names."""
    from glmforge.evaluate.benchmarks.harness import Asking
    from glmforge.evaluate.benchmarks.model import Generation

    asking, generation = (
        {one.name: getattr(options, one.name) for one in fields(kind)} for kind in (Asking, Generation)
    )
    return Asking(**asking), Generation(**generation)


def _evaluate(options: Options, chosen: "Sequence[Benchmark]") -> None:
    """Evaluate one model and print its scores."""
    from glmforge.checkpoint.collective import rank, run_on_rank_zero
    from glmforge.evaluate.benchmarks.estimate import estimate
    from glmforge.evaluate.benchmarks.harness import Asked
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.run import ask, finish, prepare, score_all, settings_of
    from glmforge.observe.units import counted
    from glmforge.observe.work_progress import work_progress
    from glmforge.report.evaluation_page import write_page
    from glmforge.runtime.launch import LaunchEnvironment

    asking, generation = _asked(options)
    settings, store = settings_of(asking, generation, chosen), None if options.dry_run else options.out
    is_main = LaunchEnvironment.read().is_main
    console = Console(stderr=True, quiet=not is_main, soft_wrap=True, markup=False, highlight=False)
    with opened(options, is_chat=options.chat) as model:
        if store is not None:
            run_on_rank_zero(lambda: prepare(store, model.identity, settings, overwrite=options.force))
        with work_progress("evaluating", 100, console) as show, ReplyStore(store, rank()) as replies:

            def progress(done: int, number: int) -> None:
                show(done, f"{done:,} of {number:,} requests")

            def before(asked: list[list[Asked]]) -> bool:
                if isinstance(answering, EngineLM):
                    todo = str(estimate(answering, asked))
                else:
                    todo = counted(sum(len(one.requests) for some in asked for one in some), "request")
                console.print(f"to do: {todo}")
                return not options.dry_run

            answering = model.answering(replies, generation, on_progress=progress)
            answered = ask(chosen, asking, answering, before)
    if options.dry_run or not is_main:
        return
    result = finish(options.out, model.source, model.identity, settings, *score_all(answered))
    print_table("", score_table(result.scores), Console())
    typer.echo(f"{write_page(options.out, baseline=options.compare_baseline)}")
    if options.compare_baseline is not None:
        compare(options.compare_baseline, options.out)
    for score in result.scores:
        if score.refused:
            raise GlmforgeError(f"{score.benchmark}: no score: {score.refused}")


def score_table(scores: "Sequence[Score]") -> "Table":
    """A row for each benchmark. Finished answers and cut ones stand beside the score that mixes them."""
    from glmforge.evaluate.result import format_score

    rows = table("benchmark", "items", "score", "95 % interval", "finished", "cut", "chance", in_words=("benchmark",))
    for one in scores:
        samples = f" x {one.num_samples}" if one.num_samples > 1 else ""
        rows.add_row(escape(one.benchmark), f"{one.num_items:,}{samples}", *one.text)
        for name, value in one.extra.items():
            rows.add_row(escape(f"  {name}"), "", format_score(value), "", "", "", "")
    return rows
