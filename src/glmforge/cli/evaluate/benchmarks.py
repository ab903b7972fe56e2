"""`glmforge evaluate MODEL --benchmark NAMES`: the score of a model on benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from glmforge.cli.data.options import ForceOption
from glmforge.cli.evaluate.results import compare
from glmforge.cli.generate import Dtype
from glmforge.cli.signature import takes
from glmforge.cli.tables import print_table, table
from glmforge.errors import GlmforgeError
from glmforge.extras import needed_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from glmforge.evaluate.result import Score
    from glmforge.generate.engine import Engine


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which model, which benchmarks, and how they are asked."""

    model: Annotated[str, typer.Argument(help="An export, a run, a step of it (RUN@STEP), a checkpoint, or a URL.")]
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
    unsafe_code: Annotated[bool, typer.Option(help="Run programs without a sandbox where there is none.")] = False
    dtype: Annotated[Dtype | None, typer.Option(help="Compute in this type instead of the stored one.")] = None
    device: Annotated[str, typer.Option(help="Where the model goes, such as cuda.")] = "cpu"
    cache_gib: Annotated[float, typer.Option(min=0.001, help="Memory for keys and values, in GiB.")] = 0.25
    max_sequences: Annotated[int, typer.Option(min=1, help="Requests that run at the same time.")] = 64
    tokenizer: Annotated[Path | None, typer.Option(help="Instead of the model's own tokenizer.")] = None
    compare_baseline: Annotated[
        Path | None, typer.Option(help="An earlier result to compare with, item by item.", metavar="RESULT")
    ] = None
    force: ForceOption = False


@takes(Options)
def benchmarks(options: Options) -> None:
    """Score a model on benchmarks; every reply is kept, and a stopped evaluation resumes.

    Known benchmarks read the authors' own files from --data. Other tasks of lm-evaluation-harness load their data from
    the hub.

    Examples:

        glmforge evaluate exports/glm --benchmark mmlu,gsm8k --data data/eval --out results/glm

        glmforge evaluate runs/sft --benchmark math500 --chat --num-samples 4 --temperature 1 --data data/eval --out r
    """
    with needed_for("evaluate"):
        import datasets  # noqa: F401
        import lm_eval  # noqa: F401
    from glmforge.evaluate.benchmarks import scorers
    from glmforge.evaluate.benchmarks.catalog import open_benchmark
    from glmforge.evaluate.benchmarks.harness import Asking
    from glmforge.evaluate.benchmarks.language_model import EngineLM, Generation
    from glmforge.evaluate.benchmarks.replies import ReplyStore
    from glmforge.evaluate.result import read_result
    from glmforge.evaluate.run import finish, prepare, run, settings_of
    from glmforge.observe.work_progress import work_progress
    from glmforge.report.evaluation_page import write_result_page

    names = [name for text in options.benchmark for name in text.split(",") if name]
    if not names:
        raise GlmforgeError("--benchmark: name at least one")
    if options.system and not options.chat:
        raise GlmforgeError("--system: a system message needs --chat")
    if options.compare_baseline is not None:
        read_result(options.compare_baseline)
    scorers.unsafe_code = options.unsafe_code
    chosen = [open_benchmark(name, options.data) for name in dict.fromkeys(names)]
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
    settings = settings_of(asking, generation, chosen)
    model, identity = _load(options)
    prepare(options.out, identity, settings, overwrite=options.force)
    with work_progress("evaluating", 100) as show, ReplyStore(options.out) as replies:
        answering = EngineLM(
            model,
            replies,
            generation,
            is_chat=options.chat,
            on_progress=lambda one: show(one.num_done, f"{one.num_done:,} of {one.num_requests:,} requests"),
        )
        scores, items = run(chosen, asking, answering)
    result = finish(options.out, options.model, identity, settings, scores, items)
    print_table("", score_table(result.scores), Console())
    typer.echo(f"{write_result_page(options.out, baseline=options.compare_baseline)}")
    if options.compare_baseline is not None:
        compare(options.compare_baseline, options.out)
    for score in result.scores:
        if score.refused:
            raise GlmforgeError(f"{score.benchmark}: no score: {score.refused}")


def _load(options: Options) -> "tuple[Engine, dict[str, object]]":
    """The engine of a model on the disk, and what tells it from others."""
    import torch

    from glmforge.evaluate.run import weights_digest
    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.generate.runner import WholeModel
    from glmforge.kernels.allocator import keep_large_blocks

    keep_large_blocks()
    dtypes = {Dtype.bf16: torch.bfloat16, Dtype.fp32: torch.float32}
    engine = Engine.load(
        options.model,
        EngineConfig(
            cache_bytes=int(options.cache_gib * 2**30),
            max_sequences=options.max_sequences,
            max_step_tokens=max(512, options.max_sequences),
        ),
        dtype=None if options.dtype is None else dtypes[options.dtype],
        device=options.device,
        tokenizer=options.tokenizer,
    )
    assert isinstance(engine.runner, WholeModel), "it was loaded whole"
    if engine.tokenizer is None:
        raise GlmforgeError(f"{options.model}: a preset has no tokenizer; give a run or an export, or --tokenizer")
    return engine, {"weights": weights_digest(engine.runner.model), "tokenizer": engine.tokenizer.fingerprint}


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
