"""`glmforge evaluate MODEL --benchmark NAMES`: the score of a model on benchmarks."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.options import ForceOption
from glmforge.cli.evaluate.model import ModelOptions, answering, identity_of, opened, server_of
from glmforge.cli.evaluate.results import compare
from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from glmforge.evaluate.benchmarks.catalog import Benchmark
    from glmforge.evaluate.benchmarks.endpoint_model import Server
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
    the hub. Before the start it says how many requests and tokens there are, and about how long they take.

    Examples:

        glmforge evaluate exports/glm --benchmark mmlu,gsm8k --data data/eval --out results/glm

        glmforge evaluate runs/sft --benchmark math500 --chat --num-samples 4 --temperature 1 --data data/eval --out r

        glmforge evaluate http://localhost:8000/v1 --model-name glm --benchmark gsm8k --chat --data data/eval --out r

        glmforge evaluate benchmarks --watch runs/glm --benchmark mmlu --data data/eval --out runs/glm/evaluations

        torchrun --nproc-per-node 4 -m glmforge evaluate runs/glm --benchmark mmlu --data d --out r --parallel ep=4
    """
    from glmforge.evaluate.benchmarks import scorers  # first: its package quiets the progress bars of the harness

    with needed_for("evaluate"):
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks.catalog import open_benchmark
    from glmforge.evaluate.result import read_result

    names = [name for text in options.benchmark for name in text.split(",") if name]
    if not names:
        raise GlmforgeError("--benchmark: name at least one")
    if options.system and not options.chat:
        raise GlmforgeError("--system: a system message needs --chat")
    server = server_of(options)
    if server is not None and options.watch:
        raise GlmforgeError("--watch: needs the directory of a run as the model, not a URL")
    if options.compare_baseline is not None:
        read_result(options.compare_baseline)
    scorers.unsafe_code = options.unsafe_code
    chosen = [open_benchmark(name, options.data) for name in dict.fromkeys(names)]
    if options.watch:
        _watch(options, chosen)
    else:
        _evaluate(options, chosen, server)


def _watch(options: Options, chosen: "Sequence[Benchmark]") -> None:
    from glmforge.evaluate.run import settings_of
    from glmforge.evaluate.watch import watch
    from glmforge.runtime.launch import LaunchEnvironment

    if LaunchEnvironment.read().world_size > 1:
        raise GlmforgeError("--watch: runs in one process; start it without torchrun")

    def evaluate(checkpoint: Path, out: Path) -> None:
        console.print(f"{checkpoint.name}:", highlight=False)
        _evaluate(replace(options, model=str(checkpoint), out=out), chosen)

    console = Console()
    settings = settings_of(*_asked(options), chosen)
    number = watch(Path(options.model), options.out, settings, evaluate, once=options.once)
    console.print(f"{number:,} checkpoints evaluated; results are in {options.out}", markup=False, highlight=False)


def _asked(options: Options) -> "tuple[Asking, Generation]":
    """How the items are asked and answered."""
    from glmforge.evaluate.benchmarks.harness import Asking
    from glmforge.evaluate.benchmarks.model import Generation

    asking = Asking(chat=options.chat, system=options.system, num_fewshot=options.num_fewshot, limit=options.limit)
    generation = Generation(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        num_samples=options.num_samples,
        seed=options.seed,
        thinking=options.thinking,
    )
    return asking, generation


def _evaluate(options: Options, chosen: "Sequence[Benchmark]", server: "Server | None" = None) -> None:
    """Evaluate one model and print its scores."""
    from glmforge.checkpoint.collective import rank, run_on_rank_zero
    from glmforge.evaluate.benchmarks.estimate import estimate
    from glmforge.evaluate.benchmarks.harness import Asked
    from glmforge.evaluate.benchmarks.language_model import EngineLM
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.run import ask, finish, prepare, score_all, settings_of
    from glmforge.observe.units import counted
    from glmforge.observe.work_progress import work_progress
    from glmforge.report.evaluation_page import write_result_page
    from glmforge.runtime.launch import LaunchEnvironment

    asking, generation = _asked(options)
    settings = settings_of(asking, generation, chosen)
    is_main = LaunchEnvironment.read().is_main
    console = Console(stderr=True, quiet=not is_main, soft_wrap=True, markup=False, highlight=False)
    with opened(options, server) as model:
        identity = identity_of(model, options)
        if not options.dry_run:
            run_on_rank_zero(lambda: prepare(options.out, identity, settings, overwrite=options.force))
        replies = ReplyStore(options.out, rank())
        if options.dry_run:
            replies.known.clear()  # they may be another model's
        with work_progress("evaluating", 100, console) as show, nullcontext() if options.dry_run else replies:
            answerer = answering(
                model,
                options,
                replies,
                generation,
                is_chat=options.chat,
                on_progress=lambda done, number: show(done, f"{done:,} of {number:,} requests"),
            )

            def before(asked: list[list[Asked]]) -> bool:
                if isinstance(answerer, EngineLM):
                    told = str(estimate(answerer, asked))
                else:
                    told = counted(sum(len(one.requests) for some in asked for one in some), "request")
                console.print(f"to do: {told}")
                return not options.dry_run

            answered = ask(chosen, asking, answerer, before)
    if options.dry_run or not is_main:  # the others have said what they had to
        return
    source = options.model if server is None else f"{server.model} at {server.url}"
    result = finish(options.out, source, identity, settings, *score_all(answered))
    print_table("", score_table(result.scores), Console())
    typer.echo(f"{write_result_page(options.out, baseline=options.compare_baseline)}")
    if options.compare_baseline is not None:
        compare(options.compare_baseline, options.out)
    for score in result.scores:
        if score.refused:
            raise GlmforgeError(f"{score.benchmark}: no score: {score.refused}")


def score_table(scores: "Sequence[Score]") -> "Table":
    """A row for each benchmark. Finished answers and cut ones stand beside the score that mixes them."""
    rows = table("benchmark", "items", "score", "95 % interval", "finished", "cut", "chance", in_words=("benchmark",))
    for one in scores:
        interval = "" if one.interval is None else f"{one.interval.low:.1%} to {one.interval.high:.1%}"
        rows.add_row(
            one.benchmark,
            f"{one.num_items:,}" + (f" x {one.num_samples}" if one.num_samples > 1 else ""),
            "none" if one.score is None else f"{one.score:.1%}",
            interval,
            "" if one.finished_score is None else f"{one.finished_score:.1%}",
            f"{one.cut_share:.1%}" if one.num_finished is not None else "",
            "" if one.chance is None else f"{one.chance:.0%}",
        )
        for name, value in one.extra.items():
            rows.add_row(f"  {name}", "", f"{value:.1%}" if 0 <= value <= 1 else f"{value:.3f}", "", "", "", "")
    return rows
