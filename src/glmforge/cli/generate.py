"""`glmforge generate`: answers to a file of prompts, or to one."""

import secrets
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmforge.cli.signature import takes
from glmforge.cli.terminal import as_shown
from glmforge.errors import GlmforgeError
from glmforge.files import read_text

if TYPE_CHECKING:
    from glmforge.generate.engine import Engine
    from glmforge.generate.params import SamplingParams


class Drafter(StrEnum):
    """Who guesses at the coming tokens, for the model to check several at once."""

    mtp = "mtp"
    ngram = "ngram"


class Dtype(StrEnum):
    """Types that a model can compute in."""

    bf16 = "bf16"
    fp32 = "fp32"


@dataclass(frozen=True)
class Options:
    """Those from `max_new_tokens` to `experts` are fields of `SamplingParams` of the same names."""

    model: Annotated[Path, typer.Argument(help="An export, a run, a step of it (RUN@STEP), or a checkpoint.")]
    prompts: Annotated[Path | None, typer.Argument(help="A file with a JSON object per line.")] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file of answers to write.")] = None
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this text, on the screen.")] = None
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 128
    min_new_tokens: Annotated[int, typer.Option(help="Shortest answer, in tokens.")] = 0
    temperature: Annotated[float, typer.Option(help="0 always picks the most likely token.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Sample from this share of the probability.")] = 1.0
    top_k: Annotated[int, typer.Option(help="Sample from so many of the likeliest tokens; 0: from all.")] = 0
    min_p: Annotated[float, typer.Option(help="Drop tokens less likely than this share of the likeliest.")] = 0.0
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: tokens that were there are less likely.")] = 1.0
    frequency_penalty: Annotated[float, typer.Option(help="Off a logit for each time in the answer.")] = 0.0
    presence_penalty: Annotated[float, typer.Option(help="Off a logit if it is in the answer.")] = 0.0
    logit_bias: Annotated[list[str] | None, typer.Option(help="TOKEN=NUMBER, added to the token's logit.")] = None
    banned_tokens: Annotated[list[int] | None, typer.Option(help="A token that is never chosen.")] = None
    first_tokens: Annotated[list[int] | None, typer.Option(help="A token that may be the first one.")] = None
    seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Answers to each prompt.")] = 1
    stop_ids: Annotated[list[int] | None, typer.Option(help="A token that ends an answer.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends an answer.")] = None
    logprobs: Annotated[int | None, typer.Option(help="Log-probabilities of so many tokens at each place.")] = None
    prompt_logprobs: Annotated[bool, typer.Option(help="Log-probabilities of the prompts' tokens.")] = False
    experts: Annotated[bool, typer.Option(help="The experts that each token chose.")] = False
    json_schema: Annotated[Path | None, typer.Option(help="A file: answers are JSON of this schema.")] = None
    grammar: Annotated[Path | None, typer.Option(help="A file: answers are texts of this grammar (Lark's).")] = None
    dtype: Annotated[Dtype | None, typer.Option(help="Compute in this type instead of the stored one.")] = None
    device: Annotated[str, typer.Option(help="Where the model goes, such as cuda.")] = "cpu"
    cache_gib: Annotated[float, typer.Option(min=0.0, help="Memory for keys and values, in GiB.")] = 0.25
    max_sequences: Annotated[int, typer.Option(min=1, help="So many answers grow at the same time.")] = 64
    max_step_tokens: Annotated[int, typer.Option(min=1, help="So many tokens are computed in a step.")] = 512
    drafter: Annotated[Drafter | None, typer.Option(help="Who drafts tokens; the answers stay the same.")] = None
    num_drafts: Annotated[int, typer.Option(min=1, help="So many tokens are drafted at a time.")] = 2
    tokenizer: Annotated[Path | None, typer.Option(help="Instead of the model's own tokenizer.")] = None
    force: Annotated[bool, typer.Option(help="Replace an earlier file of answers.")] = False


@takes(Options)
def generate(options: Options) -> None:
    """Answer a file of prompts, many at a time.

    Each line of it has `prompt` (text or token ids) or `messages` (a conversation), and may have an `id` and settings
    of its own, named as the options. A line that cannot be served gets an `error` for an answer. Stopped by Ctrl-C, the
    same command goes on where it was.

    Examples:

        glmforge generate runs/demo/export prompts.jsonl --out answers.jsonl --temperature 0.8 -n 4

        glmforge generate runs/demo --prompt "def main():" --max-new-tokens 64
    """
    if (options.prompts is None) == (options.prompt is None):
        raise typer.BadParameter("give a file of prompts, or one with --prompt", param_hint="PROMPTS")
    if (options.prompts is None) != (options.out is None):
        raise typer.BadParameter("goes with a file of prompts, to say where their answers go", param_hint="--out")
    params = _params(options)
    engine = _engine(options)
    if options.prompts is None:
        _answer_one(engine, options.prompt or "", params)
    else:
        _answer_file(engine, options, params)


def _params(options: Options) -> "SamplingParams":
    from glmforge.generate.params import SamplingParams

    given = {
        field.name: getattr(options, field.name) for field in fields(SamplingParams) if hasattr(options, field.name)
    }
    given["logit_bias"] = dict(_bias(text) for text in options.logit_bias or ())
    for name in ("json_schema", "grammar"):
        given[name] = None if given[name] is None else read_text(given[name], error=GlmforgeError)
    for name in ("banned_tokens", "first_tokens", "stop_ids", "stop"):
        given[name] = tuple(given[name] or ())
    return SamplingParams(**given)


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not TOKEN=NUMBER, such as 17=-2.5", param_hint="--logit-bias") from None


def _engine(options: Options) -> "Engine":
    import torch

    from glmforge.generate.config import EngineConfig
    from glmforge.generate.engine import Engine
    from glmforge.kernels.allocator import keep_large_blocks

    keep_large_blocks()
    dtypes = {Dtype.bf16: torch.bfloat16, Dtype.fp32: torch.float32}
    return Engine.load(
        options.model,
        EngineConfig(
            cache_bytes=int(options.cache_gib * 2**30),
            max_sequences=options.max_sequences,
            max_step_tokens=options.max_step_tokens,
            seed=secrets.randbits(62),
            drafter=None if options.drafter is None else options.drafter.value,
            num_drafts=options.num_drafts,
        ),
        dtype=None if options.dtype is None else dtypes[options.dtype],
        device=options.device,
        tokenizer=options.tokenizer,
    )


def _answer_one(engine: "Engine", prompt: str, params: "SamplingParams") -> None:
    """Print the answer as it comes; several ones when all are there."""
    if params.num_samples > 1:
        samples = engine.generate([prompt], params)[0]
        for sample in samples:
            typer.echo(as_shown(sample.text))
    else:
        (samples,) = engine.generate(
            [prompt], params, on_update=lambda update: typer.echo(as_shown(update.text), nl=False)
        )
        typer.echo()
    if (error := next((sample.error for sample in samples if sample.error is not None), None)) is not None:
        raise GlmforgeError(error)


def _answer_file(engine: "Engine", options: Options, params: "SamplingParams") -> None:
    from glmforge.deploy.answers import answer_file
    from glmforge.observe.units import counted
    from glmforge.observe.work_progress import work_progress

    assert options.prompts is not None
    assert options.out is not None
    metrics = engine.metrics
    with work_progress(f"answering {options.prompts}", first_line=100) as show:
        answered = answer_file(
            engine,
            options.prompts,
            options.out,
            params,
            source=str(options.model),
            overwrite=options.force,
            on_answer=lambda done: show(done, f"{done:,} prompts, {metrics.tokens_per_second:,.0f} tokens/s"),
        )
    typer.echo(f"{answered.num_answered:,} answers in {options.out}")
    typer.echo(metrics.summary(), err=True)
    if answered.failed:
        lines = ", ".join(map(str, answered.failed[:20])) + (" ..." if len(answered.failed) > 20 else "")
        number = counted(len(answered.failed), "line")
        raise GlmforgeError(f"{options.prompts}: {number} without an answer ({lines}): see the errors there")
