"""Limits of an engine."""

from dataclasses import dataclass
from typing import Literal

from glmforge.errors import GlmforgeError

DrafterName = Literal["mtp", "ngram"]


@dataclass(frozen=True)
class EngineConfig:
    """Limits of an engine.

    Attributes:
        cache_bytes: memory for keys and values on this rank.
        page_size: tokens of a page.
        max_sequences: this many run at the same time.
        max_step_tokens: this many tokens are computed in a step; long prompts take several.
        max_queued_requests: this many requests may wait beside `max_sequences`; one more is refused (`QueueFullError`).
            None for no limit.
        max_queued_tokens: this many tokens of prompts may wait; a prompt is refused that would make it more, unless
        none
            waits. None for no limit.
        share_prefixes: whether requests that begin alike share pages.
        seed: of the requests that have none.
        drafter: who guesses at the coming tokens (see `speculate`): "mtp", the model's own MTP layer, or "ngram", what
            followed the last tokens before; None: no drafter. It changes no token, only how many a step gives.
        num_drafts: at most this many tokens are drafted for a sequence in a step.
        max_draft_tokens: at most this many for all sequences together: each has fewer where many decode.
    """

    cache_bytes: int = 1 << 28
    page_size: int = 16
    max_sequences: int = 64
    max_step_tokens: int = 512
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    share_prefixes: bool = True
    seed: int = 0
    drafter: DrafterName | None = None
    num_drafts: int = 2
    max_draft_tokens: int = 16

    def __post_init__(self) -> None:
        sizes = ("cache_bytes", "page_size", "max_sequences", "max_step_tokens", "num_drafts", "max_draft_tokens")
        for name in (*sizes, "max_queued_requests", "max_queued_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise GlmforgeError(f"{name}: {value} is not 1 or more")


DEFAULTS = EngineConfig()
