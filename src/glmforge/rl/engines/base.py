"""What the run needs of a server that samples: token ids in, token ids and their log-probabilities out.

Text is never exchanged: what is sampled is what is trained on. Servers are not trusted: `checked` refuses token ids
that are none, log-probabilities that are missing or no numbers, and answers that end without a reason.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from glmforge.checkpoint.collective import all_gather
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Details, Sample
from glmforge.generate.logprobs import TokenLogprob
from glmforge.generate.params import SamplingParams
from glmforge.observe.alive import Alive, quiet

T = TypeVar("T")
_TICK_S = 0.1


class EngineError(GlmforgeError):
    """A server that cannot be used: it refuses a request, or its reply is wrong."""


class EngineLostError(EngineError):
    """A server that does not answer, or has other weights than it was given: another one may do."""


SampledGroup = list[Sample]
"""The samples of one prompt."""


class RolloutEngine(Protocol):
    """One server. Methods raise `EngineError`; several threads may call them."""

    url: str

    def begin(self, prompt: Sequence[int], params: SamplingParams) -> "Future[SampledGroup]":
        """Have a group sampled; failures are the future's."""
        ...

    def version(self) -> int | None:
        """Of its weights, as they were numbered when they were sent; None before that. Asked to see that it lives."""
        ...

    def pause(self) -> None:
        """Stop sampling; answers that have begun wait."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class BucketEngine(RolloutEngine, Protocol):
    """One that is sent weights in buckets, between `begin_update` and `commit`."""

    def begin_update(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """Published name -> type and shape of all that it holds and must be sent."""
        ...

    def put(self, bucket: bytes) -> Mapping[str, int]:
        """Send tensors, a safetensors file; the checksum of each as the server holds it."""
        ...

    def commit(self, version: int) -> None: ...


class DirectoryEngine(RolloutEngine, Protocol):
    """One that reads weights in Hugging Face's format from a directory."""

    def load(self, directory: Path, version: int) -> None: ...


def checked(
    url: str, found: Any, prompt: Sequence[int], params: SamplingParams, vocab_size: int, shape_MK: tuple[int, int]
) -> Sample:
    """An answer of a server: `tokens`, `logprobs`, `finish_reason`, and `experts` if they are asked for.

    Raises `EngineLostError` for one that was aborted, `EngineError` for whatever else is no answer.
    """

    def refuse(problem: str) -> EngineError:
        return EngineError(f"{url}: invalid reply: {problem}")

    if not isinstance(found, Mapping):
        raise refuse("an answer is not an object")
    tokens, logprobs, finished = found.get("tokens"), found.get("logprobs"), found.get("finish_reason")
    if finished in ("abort", "cancelled"):
        raise EngineLostError(f"{url}: aborted a request")
    if not isinstance(tokens, list) or not all(type(one) is int and 0 <= one < vocab_size for one in tokens):
        raise refuse(f"tokens are not ids from 0 to {vocab_size - 1:,}")
    if not isinstance(logprobs, list) or len(logprobs) != len(tokens):
        raise refuse("there is not one log-probability for each token")
    if not all(type(one) in (int, float) and math.isfinite(one) and one <= 1e-3 for one in logprobs):
        raise refuse("log-probabilities are not finite numbers below 0")
    is_cut = finished == "length" and len(tokens) == params.max_new_tokens
    if not (0 < len(tokens) <= params.max_new_tokens and (finished == "stop" or is_cut)):
        raise refuse(f"{len(tokens):,} of at most {params.max_new_tokens:,} tokens ended by {str(finished)[:40]!r}")
    details = None
    if params.experts:
        try:
            experts_TMK = np.asarray(found.get("experts"), dtype=np.int16)
        except (ValueError, TypeError, OverflowError):
            experts_TMK = np.empty(0, dtype=np.int16)
        if experts_TMK.shape != (len(prompt) + len(tokens) - 1, *shape_MK):
            raise refuse(f"experts are not {list(shape_MK)} numbers for each token")
        details = Details([], torch.from_numpy(experts_TMK))
    return Sample(tokens, finished, logprobs=[TokenLogprob(float(one)) for one in logprobs], details=details)


def together(action: Callable[[], T], alive: Alive = quiet, what: str = "waiting for the engine") -> T:
    """Call `action`, which does not communicate with ranks, on each of them, in a thread; its result here. Collective.

    If it raises `EngineError` on any rank, all raise one: `EngineLostError` if that is all that was raised.
    """
    failure: EngineError | None = None
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(action)
        wait([future], _TICK_S)
        while not all(all_gather(future.done())):
            alive(what)
            wait([future], _TICK_S)
    try:
        result = future.result()
    except EngineError as error:
        failure = error
    found = [one for one in all_gather(None if failure is None else (type(failure), str(failure))) if one is not None]
    if found:
        kind, message = min(found, key=lambda one: one[0] is EngineLostError)
        raise kind(message)
    return result
