"""What a request may be given as: text or token ids, and what a tokenizer says beside it."""

import operator
from collections import abc
from dataclasses import replace

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.files import why_no_text
from glmforge.generate.params import RequestError, SamplingParams

Prompt = str | abc.Sequence[int]
"""Text, which needs a tokenizer, or token ids."""


def encode_prompt(
    prompt: Prompt, params: SamplingParams, tokenizer: Tokenizer | None
) -> tuple[list[int], SamplingParams]:
    """Token ids, and `params` with what the tokenizer knows where they name nothing else.

    A tokenizer's stop tokens end an answer, and ids that it does not have are never chosen. After text, control tokens
    are not either, but for end-of-text: text has none of them. Raises `RequestError`.
    """
    if tokenizer is None:
        if isinstance(prompt, str):
            raise RequestError("prompt: is text, but the engine has no tokenizer; pass a tokenizer, or token IDs")
        return _ids(prompt), params
    if isinstance(prompt, str):
        if (reason := why_no_text(prompt)) is not None:
            raise RequestError(f"prompt: {reason}")
        ids, vocab_size = tokenizer.encode(prompt), tokenizer.end_of_text_id + 1  # control tokens come last
    else:
        ids, vocab_size = _ids(prompt), tokenizer.vocab_size
    thought_ids: abc.Sequence[int] = ()
    if params.thought_budget is not None:
        thought_ids = params.thought_ids or [tokenizer.special_id(token) for token in ("<think>", "</think>")]
    stop_ids, vocab_size = params.stop_ids or tokenizer.stop_ids, params.vocab_size or vocab_size
    return ids, replace(params, stop_ids=stop_ids, vocab_size=vocab_size, thought_ids=thought_ids)


def _ids(prompt: object) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]  # type: ignore[attr-defined]
    except TypeError:
        raise RequestError(
            f"prompt: must be text or a list of token ids, such as [1, 2, 3], not {prompt!r:.80}"
        ) from None
