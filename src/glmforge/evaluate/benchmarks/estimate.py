"""What an evaluation takes, before it starts: requests, tokens, and seconds by a short probe of the engine.

The tokens to compute are counted as the engine computes them: known replies cost nothing, beginnings that requests
share count once. The length of answers is not known, so their tokens are the most that there can be.
"""

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from glmforge.evaluate.benchmarks.harness import Asked
from glmforge.evaluate.benchmarks.language_model import EngineLM, share_of
from glmforge.evaluate.benchmarks.prefixes import common_length
from glmforge.generate.params import SamplingParams
from glmforge.observe.units import counted, format_duration

_NUM_STEPS = 8
_PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Estimate:
    """Requests to the engine (choices that differ in their last token are one), tokens to compute, and seconds on all
    ranks together, if every answer is as long as allowed."""

    num_requests: int
    num_prompt_tokens: int
    num_new_tokens: int
    seconds: float

    def __str__(self) -> str:
        if not self.num_requests:
            return "all replies are there"
        answers = f" and at most {self.num_new_tokens:,} new tokens" if self.num_new_tokens else ""
        return (
            f"{counted(self.num_requests, 'request')}, {self.num_prompt_tokens:,} prompt tokens (shared beginnings "
            f"once){answers}: {'at most ' if answers else ''}about {format_duration(self.seconds)}"
        )


def estimate(model: EngineLM, asked: Sequence[Sequence[Asked]]) -> Estimate:
    """For the items of several benchmarks. Ranks that share the model call this together."""
    kinds = ([request for item in items for request in item.requests] for items in asked)
    missing = [one for requests in kinds for one in model.missing(requests)]
    prompts = sorted(one.ids for one in missing)
    num_prompt = sum(map(len, prompts)) - sum(common_length(a, b) for a, b in itertools.pairwise(prompts))
    written = [one.params for one in missing if not one.params.logprob_tokens]
    num_new = sum(params.max_new_tokens * params.num_samples for params in written)
    if not missing:
        return Estimate(0, 0, 0, 0.0)
    _, num_shares, _ = share_of(model.engine)
    per_prompt_token, per_new_token = _probe(model, num_answers=sum(params.num_samples for params in written))
    seconds = (num_prompt * per_prompt_token + num_new * per_new_token) / num_shares
    return Estimate(len(missing), num_prompt, num_new, seconds)


def _probe(model: EngineLM, num_answers: int) -> tuple[float, float]:
    """Seconds of a prompt's token and of an answer's token on this rank, each with as many as run together."""
    engine, draw, config = model.engine, random.Random(0), model.engine.runner.config
    most = min(config.max_position_embeddings, engine.memory.num_tokens)

    def seconds(num_prompts: int, num_tokens: int, num_new: int) -> float:
        prompts = [draw.choices(range(config.vocab_size), k=num_tokens) for _ in range(num_prompts)]
        began = time.perf_counter()
        engine.generate(prompts, SamplingParams(max_new_tokens=num_new, min_new_tokens=num_new))
        return time.perf_counter() - began

    length = max(1, min(_PROMPT_TOKENS, most - 1))
    seconds(1, length, 1)  # the first step compiles, allocates and gathers
    prompt = seconds(1, length, 1)
    if not num_answers:
        return prompt / length, 0.0
    together = max(1, min(engine.config.max_sequences, num_answers, engine.memory.num_tokens // (2 * _NUM_STEPS)))
    one, several = seconds(together, 1, 1), seconds(together, 1, 1 + _NUM_STEPS)
    return prompt / length, max(several - one, 0.0) / (_NUM_STEPS * together)
