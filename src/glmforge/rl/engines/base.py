"""What a run needs of a server that samples: token ids in, token ids and their log-probabilities out.

Text is never exchanged: what is sampled is what is trained on. Servers are not trusted: `checked` refuses token ids out
of range, log-probabilities that are missing or not finite, and answers without a valid reason for their end.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
import torch

from glmforge.checkpoint.collective import all_gather
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Details, Sample
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.observe.alive import Alive, quiet

T = TypeVar("T")
SampledGroup = list[Sample]
"""The samples of one prompt."""
_TICK_S = 0.1


class EngineError(GlmforgeError):
    """A server that cannot be used: it refuses a request, or its reply is wrong."""


class EngineLostError(EngineError):
    """A server that does not answer: it, or its successor, may be asked again."""


def checked(
    url: str, found: Any, prompt: Sequence[int], params: SamplingParams, vocab_size: int, shape_MK: tuple[int, int]
) -> Sample:
    """An answer of a server: `tokens`, `logprobs`, `finish_reason`, `experts` if they are asked for, and `versions` of
    the weights where it says them.

    Raises `EngineLostError` for one that was aborted, `EngineError` for any other invalid answer.
    """
    tokens, logprobs, finished = (found[name] for name in ("tokens", "logprobs", "finish_reason"))
    versions = found.get("versions") or []
    problem, details = "", None
    if finished in ("abort", "cancelled"):
        raise EngineLostError(f"{url}: aborted a request")
    if not _are_numbers(tokens, vocab_size):
        problem = f"tokens are not ids from 0 to {vocab_size - 1:,}"
    elif not isinstance(logprobs, list) or len(logprobs) != len(tokens):
        problem = "there is not one log-probability for each token"
    elif not all(type(one) in (int, float) and math.isfinite(one) and one <= 1e-3 for one in logprobs):
        problem = "log-probabilities are not finite numbers below 0"
    elif not 0 < len(tokens) <= params.max_new_tokens or finished not in ("stop", "length"):
        problem = f"{len(tokens):,} of at most {params.max_new_tokens:,} tokens ended by {str(finished)[:40]!r}"
    elif versions and not (_are_numbers(versions, 2**31) and len(versions) == len(tokens)):
        problem = "there is not one version of the weights for each token"
    elif params.experts:
        try:
            experts_TMK = np.array(found.get("experts"), dtype=np.int16)
        except (ValueError, TypeError, OverflowError):
            experts_TMK = np.empty(0, dtype=np.int16)
        if experts_TMK.shape != (len(prompt) + len(tokens) - 1, *shape_MK) or experts_TMK.min() < 0:
            problem = f"experts are not {list(shape_MK)} numbers for each token"
        details = Details([], torch.from_numpy(experts_TMK))
    if problem:
        raise EngineError(f"{url}: invalid reply: {problem}")
    of_tokens = [TokenLogprob(float(one)) for one in logprobs]
    return Sample(tokens, finished, logprobs=of_tokens, details=details, versions=versions)


def _are_numbers(values: object, limit: int) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < limit for one in values)


def together(action: Callable[[], T], alive: Alive = quiet, what: str = "waiting for the engine") -> T:
    """Call `action`, in which ranks do not communicate, on each of them, in a thread; its result here. Collective.

    If it raises `EngineError` on any rank, all raise one: `EngineLostError` if nothing else was raised.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        while wait([future], _TICK_S) and not all(all_gather(future.done())):
            alive(what)
    error = future.exception()
    own = (isinstance(error, EngineLostError), str(error)) if isinstance(error, EngineError) else None
    if failures := [one for one in all_gather(own) if one is not None]:
        is_lost, message = min(failures)
        raise (EngineLostError if is_lost else EngineError)(message)
    return future.result()
