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
    from collections.abc import Sequence

    from glmforge.data.tokens.tokenizer import Tokenizer
    from glmforge.generate.engine import Engine
    from glmforge.generate.logprobs import TokenLogprob
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
    prompts: Annotated[Path | None, typer.Argument(help="Prompts: a file with one JSON object per line.")] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file for the answers.")] = None
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this prompt on the terminal.")] = None
    control_tokens: Annotated[bool, typer.Option(help="Parse control tokens such as <|user|> in --prompt.")] = False
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128
    min_new_tokens: Annotated[int, typer.Option(help="Fewest tokens to generate.")] = 0
    temperature: Annotated[float, typer.Option(help="0: greedy decoding.")] = 0.0
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: total probability of the tokens to sample from.")] = (
        1.0
    )
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: from all.")] = 0
    min_p: Annotated[
        float, typer.Option(help="min-p: drop tokens less likely than this fraction of the most likely one.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: make tokens that already occurred less likely.")
    ] = 1.0
    frequency_penalty: Annotated[
        float, typer.Option(help="Subtracted from a token's logit per occurrence in the answer.")
    ] = 0.0
    presence_penalty: Annotated[
        float, typer.Option(help="Subtracted from a token's logit if it occurs in the answer.")
    ] = 0.0
    logit_bias: Annotated[list[str] | None, typer.Option(help="TOKEN=NUMBER: added to the token's logit.")] = None
    banned_tokens: Annotated[list[int] | None, typer.Option(help="Token that is never generated.")] = None
    first_tokens: Annotated[list[int] | None, typer.Option(help="Token that may come first.")] = None
    seed: Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same answers.")] = None
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="Answers per prompt.")] = 1
    stop_ids: Annotated[list[int] | None, typer.Option(help="Token that ends an answer.")] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer.")] = None
    logprobs: Annotated[int | None, typer.Option(help="Number of log-probabilities per token.")] = None
    prompt_logprobs: Annotated[bool, typer.Option(help="Also record log-probabilities of the prompt tokens.")] = False
    experts: Annotated[bool, typer.Option(help="Record the experts of each token in the answer file.")] = False
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Constrain answers to this JSON schema: a file, or '{...}'.")
    ] = None
    grammar: Annotated[Path | None, typer.Option(help="Constrain answers to this Lark grammar (a file).")] = None
    dtype: Annotated[Dtype | None, typer.Option(help="Compute dtype; default: the stored one.")] = None
    device: Annotated[str, typer.Option(help="Device, such as cuda.")] = "cpu"
    cache_gib: Annotated[float, typer.Option(min=0.0, help="Memory for the KV cache, in GiB.")] = 0.25
    max_sequences: Annotated[int, typer.Option(min=1, help="Most answers generated concurrently.")] = 64
    max_step_tokens: Annotated[int, typer.Option(min=1, help="Most tokens computed per step.")] = 512
    drafter: Annotated[
        Drafter | None, typer.Option(help="Speculative decoding: what drafts tokens; answers are unchanged.")
    ] = None
    num_drafts: Annotated[int, typer.Option(min=1, help="Tokens drafted at a time.")] = 2
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer directory; default: the model's own.")] = None
    force: Annotated[bool, typer.Option(help="Overwrite an earlier answer file.")] = False


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
        raise typer.BadParameter("pass a file of prompts or --prompt", param_hint="PROMPTS")
    if options.prompts is None and options.experts:
        raise typer.BadParameter("only applies to a file of prompts", param_hint="--experts")
    if options.prompts is not None and options.control_tokens:
        raise typer.BadParameter("only applies to --prompt; in a file, set it per line", param_hint="--control-tokens")
    if (options.prompts is None) != (options.out is None):
        raise typer.BadParameter("only applies to a file of prompts", param_hint="--out")
    params = _params(options)
    engine = _engine(options)
    if options.prompts is None:
        _answer_one(engine, options.prompt or "", params, control_tokens=options.control_tokens)
    else:
        _answer_file(engine, options, params)


def _params(options: Options) -> "SamplingParams":
    from glmforge.generate.params import SamplingParams

    given = {
        field.name: getattr(options, field.name) for field in fields(SamplingParams) if hasattr(options, field.name)
    }
    given["logit_bias"] = dict(_bias(text) for text in options.logit_bias or ())
    given["json_schema"] = _schema(options.json_schema)
    given["grammar"] = None if options.grammar is None else read_text(options.grammar, error=GlmforgeError)
    for name in ("banned_tokens", "first_tokens", "stop_ids", "stop"):
        given[name] = tuple(given[name] or ())
    return SamplingParams(**given)


def _schema(given: str | None) -> str | None:
    """A schema as text, from a file unless it is one itself."""
    if given is None or given.lstrip().startswith("{"):
        return given
    return read_text(Path(given), error=GlmforgeError)


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
            cache_bytes=_cache_bytes(options.cache_gib),
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


def _cache_bytes(gib: float) -> int:
    if not 1 <= gib * 2**30 < 2**63:
        raise typer.BadParameter(f"{gib:g} GiB is too small for a cache; the default is 0.25", param_hint="--cache-gib")
    return int(gib * 2**30)


def _answer_one(engine: "Engine", text: str, params: "SamplingParams", *, control_tokens: bool) -> None:
    """Print the answer as it comes, several ones when all are there; and log-probabilities, if they are requested."""
    from glmforge.deploy.chat import tokenizer_of

    def show(text: str) -> None:
        typer.echo(as_shown(text), nl=False)

    only = params.num_samples == 1
    tokenizer = tokenizer_of(engine)
    prompt_ids = tokenizer.encode_with_special_tokens(text) if control_tokens else tokenizer.encode(text)
    prompt = prompt_ids if control_tokens else text
    (samples,) = engine.generate([prompt], params, on_update=(lambda update: show(update.text)) if only else None)
    for sample in samples:
        show("\n" if only else f"{sample.text}\n")
        if sample.details is not None and sample.details.prompt_logprobs:
            _show_logprobs(tokenizer, prompt_ids[1:], sample.details.prompt_logprobs)
        if sample.logprobs:
            _show_logprobs(tokenizer, sample.tokens, sample.logprobs)
    if (error := next((sample.error for sample in samples if sample.error is not None), None)) is not None:
        raise GlmforgeError(error)


def _show_logprobs(tokenizer: "Tokenizer", tokens: "Sequence[int]", logprobs: "Sequence[TokenLogprob]") -> None:
    """A line for each token: its log-probability, the token, and the likeliest ones with theirs."""
    for token, told in zip(tokens, logprobs, strict=True):
        others = "  ".join(f"{tokenizer.decode([one])!r} {value:.3f}" for one, value in told.top)
        typer.echo(f"{told.logprob:8.3f}  {tokenizer.decode([token])!r:<16}  {others}".rstrip())


def _answer_file(engine: "Engine", options: Options, params: "SamplingParams") -> None:
    from glmforge.generate.prompt_file import answer_file
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
        raise GlmforgeError(f"{options.prompts}: {number} without an answer ({lines}); see their errors there")
