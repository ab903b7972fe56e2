"""How a request's tokens are chosen, and when it ends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from glmforge.errors import GlmforgeError

MAX_TOP_LOGPROBS = 100


class RequestError(GlmforgeError):
    """A request that cannot be served; others go on."""


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one request.

    Attributes:
        max_new_tokens: at most so many are generated, for each sample.
        min_new_tokens: no stop token and no stop string ends it before.
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_p: the smallest set of tokens whose probability reaches it is kept.
        top_k: so many of the likeliest tokens are kept; 0 keeps all.
        min_p: tokens less likely than this share of the likeliest one's probability are dropped.
        repetition_penalty: logits of tokens that the prompt or the answer has are divided by it, negative ones
            multiplied (Keskar et al., 2019).
        frequency_penalty: taken off a token's logit for each time that the answer has it.
        presence_penalty: taken off once for a token that the answer has.
        logit_bias: added to the logits of single tokens.
        banned_tokens: are never chosen.
        first_tokens: the first token is one of these, if any are given.
        vocab_size: ids from there on are never chosen (an embedding padded past its tokenizer).
        seed: tokens are a function of it, the number of the sample and the prompt, whatever else is in the batch;
            None draws a seed.
        num_samples: answers to the same prompt, which is computed once.
        stop_ids: a token that ends an answer, and is its last.
        stop: a string that ends an answer, and is not part of it. Needs a tokenizer.
        logprobs: log-probabilities of each chosen token and of so many of the likeliest, under the temperature and
            before anything else changes them; None for none.
        prompt_logprobs: log-probabilities of the prompt's tokens.
        experts: the experts that every token of the prompt and the answer chose in every layer.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_tokens: tuple[int, ...] = ()
    first_tokens: tuple[int, ...] = ()
    vocab_size: int | None = None
    seed: int | None = None
    num_samples: int = 1
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    experts: bool = False


GREEDY = SamplingParams()
"""The likeliest token each time."""
