"""A sample's reward: the weighted sum of its terms, computed for many samples at once in processes that can be killed.

A term that hangs, crashes or raises says nothing of its sample. The sample has no reward then, neither 0 nor that of
the other terms: it is counted, and never trained on. A reply that is wrong, or not in the format, is another matter: it
has a reward, a low one.

Scores of reward models come from outside: they need the model, which is sharded over the ranks, or a server.
"""

import math
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from glmforge.config.rewards import RewardsConfig, RewardTerm
from glmforge.errors import GlmforgeError
from glmforge.files import shown
from glmforge.rl.judge import Judge
from glmforge.rl.prompts import Prompt, Prompts
from glmforge.runtime.waiting import result_of
from glmforge.verify import reasoning_gym
from glmforge.verify.pool import Outcome, Pool
from glmforge.verify.refusal import is_appropriate
from glmforge.verify.reward import check_runnable
from glmforge.verify.text import length_penalty

_TEXT = "glmforge.verify.text"
_FAULTS = ("language", "repetition")
"""Terms whose functions say what is wrong: a value of 1 is a reply without that."""
_MAX_UNJUDGED = 256  # answers in a row, after which the judge is gone: the run would go on and learn nothing


@dataclass(frozen=True)
class ScoredText:
    """A sample: its prompt, the reply without the token that ended it, and its tokens; `is_cut`: it did not end."""

    prompt: Prompt
    reply: str
    num_tokens: int
    is_cut: bool
    max_new_tokens: int


@dataclass(frozen=True)
class Verdict:
    """What a sample is worth.

    Attributes:
        total: the reward; None if a term failed: the sample must not be trained on.
        terms: the value of each term by its name, without its weight, of those that did not fail.
        failed: the first term that failed, and why; "" if none did.
    """

    total: float | None
    terms: Mapping[str, float]
    failed: str = ""


class Rewards:
    """Scores samples on `num_processes` processes; a context manager. It may be used from several threads."""

    def __init__(self, config: RewardsConfig, num_processes: int | None = None) -> None:
        self.config = config
        self.failures: Counter[str] = Counter()
        """How many samples failed so far, by term and kind of failure."""
        self._limits = num_processes or os.cpu_count() or 1, config.timeout_s, config.memory_bytes
        self._pool = Pool(*self._limits)
        self._sandboxed: Pool | None = None
        """For scorers of reasoning-gym, which execute what a reply says."""
        self._lock, self._unjudged = threading.Lock(), 0
        self._judges = {term.label: Judge(term.judge) for term in config.terms if term.judge is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()
        if self._sandboxed is not None:
            self._sandboxed.close()
        for judge in self._judges.values():
            judge.close()

    @property
    def given_from_outside(self) -> tuple[RewardTerm, ...]:
        """Terms whose values `score` needs."""
        return tuple(term for term in self.config.terms if term.kind == "reward_model")

    def check(self, prompts: Prompts) -> None:
        """Raise `GlmforgeError` if these prompts could not be scored: no verifier, a missing package or function, no
        sandbox, a judge that gives no score of a simple reply."""
        for place, term in enumerate(self.config.terms):
            if term.kind == "python":
                found = result_of(self._pool.submit("glmforge.verify.pool:is_callable", term.function))
                if not found.value:
                    raise GlmforgeError(
                        f"rl.rewards.terms.{place}.function: '{term.function}' cannot be called "
                        f"({found.failed or 'it is not a function'}); name one that processes started here can import"
                    )
        if any(term.kind == "verifier" for term in self.config.terms):
            if missing := next((one for one in prompts.prompts if one.verifier is None), None):
                raise GlmforgeError(
                    f"rl.rewards.terms: 'verifier' needs a verifier in every prompt, but '{shown(missing.text)}' of "
                    f"source '{shown(missing.source)}' has none; add one, or remove the term"
                )
            check_runnable(prompts.verifier_kinds, unsafe_code=self.config.unsafe_code)
        unknown = next((one for one in prompts.prompts if one.harmful is None), None)
        if unknown and any(term.kind == "refusal" for term in self.config.terms):
            raise GlmforgeError(
                f"rl.rewards.terms: 'refusal' needs harmful: true or false with '{shown(unknown.text)}'"
            )
        for label, judge in self._judges.items():
            if failed := result_of(judge.submit([{"role": "user", "content": "What is 2 + 3?"}], "5")).failed:
                raise GlmforgeError(f"rl.rewards.terms: '{shown(label)}': {failed.removeprefix('error: ')}")

    def score(self, samples: Sequence[ScoredText], given: Mapping[str, Sequence[float]] | None = None) -> list[Verdict]:
        """The verdict on each sample.

        Args:
            given: the values of each term of `given_from_outside`, by its name, for all samples.
        """
        values = dict(given or {})
        for term in self.given_from_outside:
            if len(values.get(term.label, ())) != len(samples):
                raise GlmforgeError(f"rewards.terms: '{term.label}' needs a score for each of {len(samples)} samples")
        pending = [[self._begin(term, sample) for term in self.config.terms] for sample in samples]
        verdicts = [self._verdict(begun, number, values) for number, begun in enumerate(pending)]
        self._unjudged = 0 if any(not one.failed for one in verdicts) else self._unjudged + len(verdicts)
        if self._judges and self._unjudged >= _MAX_UNJUDGED:
            raise GlmforgeError(f"no verdict on {self._unjudged:,} answers in a row: {verdicts[-1].failed}")
        return verdicts

    def _begin(self, term: RewardTerm, sample: ScoredText) -> Future[Outcome] | Outcome:
        """What the term is worth, or will be; of the reward models' nothing."""
        prompt, reply = sample.prompt, sample.reply
        match term.kind:
            case "verifier":
                if prompt.verifier is None:
                    return Outcome(failed="the prompt has no verifier")
                pool, is_unsafe = self._pool, self.config.unsafe_code
                if prompt.verifier["kind"] == "reasoning_gym" and not is_unsafe:
                    pool, is_unsafe = self._sandboxed_pool(), True  # in the sandbox
                limits = self.config.program_s, is_unsafe
                return pool.submit("glmforge.verify.reward:reward", prompt.verifier, reply, *limits)
            case "format":
                if sample.is_cut:
                    return Outcome(0.0)
                return self._pool.submit(f"{_TEXT}:is_well_formed", reply, prompt.thinking)
            case "language":
                known = str((prompt.verifier or {}).get("answer", ""))
                return self._pool.submit(f"{_TEXT}:is_mixed", reply, f"{prompt.text}\n{known}")
            case "repetition":
                return self._pool.submit(f"{_TEXT}:repeats", reply)
            case "length":
                assert term.soft_tokens is not None, "checked with the configuration"
                return Outcome(length_penalty(sample.num_tokens, sample.max_new_tokens, term.soft_tokens))
            case "python":
                return self._pool.submit(str(term.function), prompt.record(), reply, term.options)
            case "refusal":
                if prompt.harmful is None:
                    return Outcome(failed="the prompt does not say whether it is harmful")
                return Outcome(float(is_appropriate(reply, harmful=prompt.harmful)))
            case "judge":
                return self._judges[term.label].submit(prompt.messages, reply)
            case "reward_model":
                return Outcome()

    def _sandboxed_pool(self) -> Pool:
        with self._lock:
            if self._sandboxed is None:
                self._sandboxed = Pool(*self._limits, packages=reasoning_gym.packages())
            return self._sandboxed

    def _verdict(
        self, begun: Sequence[Future[Outcome] | Outcome], number: int, given: Mapping[str, Sequence[float]]
    ) -> Verdict:
        terms: dict[str, float] = {}
        failed = ""
        for term, one in zip(self.config.terms, begun, strict=True):
            outcome = result_of(one) if isinstance(one, Future) else one
            value = given[term.label][number] if term.kind == "reward_model" else outcome.value
            if term.kind in _FAULTS:
                value = not value
            why = outcome.failed or ("" if _is_number(value) else f"not a number: {shown(repr(value)[:50])}")
            if why:
                failed = failed or f"{term.label}: {why}"
            else:
                terms[term.label] = float(value)
        if failed:
            self.failures[":".join(failed.split(":")[:2])] += 1
            return Verdict(None, terms, failed)
        total = math.fsum(term.weight * terms[term.label] for term in self.config.terms)
        return Verdict(total, terms)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
