"""What can never be served is refused before it is queued, and what would wait too long when it is."""

from collections.abc import Sequence

from glmforge.errors import GlmforgeError
from glmforge.generate.config import EngineConfig
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.generate.runner import Runner
from glmforge.generate.scheduler import Scheduler
from glmforge.observe.units import counted


class QueueFullError(GlmforgeError):
    """A request that could be served, but not now: a server answers 429 or 503, a loop takes a step and tries again."""


def refuse_impossible(
    prompt: Sequence[int], params: SamplingParams, runner: Runner, *, cache_tokens: int, has_tokenizer: bool
) -> None:
    """Raise `RequestError` for ids outside the vocabulary, what is longer than the context or than a cache of
    `cache_tokens`, and settings that this model or an engine without a tokenizer does not know."""
    vocab_size, limit = runner.config.vocab_size, runner.config.max_position_embeddings
    if not prompt:
        raise RequestError("prompt: is empty; add at least one token, such as end-of-text")
    worst = max(prompt, key=lambda token: token if token >= 0 else vocab_size)
    if not 0 <= worst < vocab_size:
        raise RequestError(f"prompt: token {worst} is outside the vocabulary of {vocab_size:,}")
    params.check_vocabulary(vocab_size)
    if params.has_grammar and runner.shares_requests:
        raise RequestError(
            "grammar: not available with tp or pp, where all ranks must choose the same tokens but grammar limits "
            "are time-based; remove it"
        )
    if not has_tokenizer and (params.stop or params.has_grammar):
        raise RequestError(
            f"{'stop' if params.stop else 'grammar'}: needs text, but the engine has only token IDs; pass a tokenizer"
        )
    # Where it is asked how likely single tokens are to follow, the prompt may take all positions.
    is_scored = params.max_new_tokens == 1 and bool(params.logprob_tokens)
    longest = len(prompt) + params.max_new_tokens - is_scored
    asked = f"{counted(len(prompt), 'token')} and max_new_tokens={params.max_new_tokens:,}"
    if longest > limit:
        raise RequestError(
            f"prompt: {asked} need {longest:,} positions, the model has {limit:,} (max_position_embeddings)"
        )
    if longest > cache_tokens:
        raise RequestError(
            f"prompt: {asked} do not fit into a cache of {cache_tokens:,} tokens; raise cache_bytes (--cache-gib)"
        )


def refuse_full(scheduler: Scheduler, config: EngineConfig, num_tokens: int = 0, *, num_preparing: int = 0) -> None:
    """Raise `QueueFullError` if there is no room for one more request, of a prompt of `num_tokens`, behind those in the
    scheduler and `num_preparing` that are to be queued before it."""
    num_queued = len(scheduler.running) + len(scheduler.waiting) + num_preparing - config.max_sequences
    if config.max_queued_requests is not None and num_queued >= config.max_queued_requests:
        raise QueueFullError(
            f"queue: is full, {num_queued:,} waiting (max_queued_requests is {config.max_queued_requests:,}); try "
            "again later"
        )
    refuse_tokens(scheduler, config, num_tokens)


def refuse_tokens(scheduler: Scheduler, config: EngineConfig, num_tokens: int) -> None:
    """Raise `QueueFullError` if a prompt of `num_tokens` more would be too much to wait."""
    if config.max_queued_tokens is None or not scheduler.waiting:
        return
    waiting = sum(sequence.num_pending for sequence in scheduler.waiting)
    if waiting + num_tokens > config.max_queued_tokens:
        raise QueueFullError(
            f"queue: is full, {counted(waiting, 'token')} waiting and {num_tokens:,} more (max_queued_tokens is "
            f"{config.max_queued_tokens:,}); try again later"
        )
