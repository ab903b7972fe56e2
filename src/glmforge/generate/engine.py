"""The generation engine: requests in, tokens out, step by step.

Each step computes what the scheduler chose (`scheduler.py`), on the pages that the sequences have (`memory.py`), and
chooses a token for every sequence that is computed to its end (`sampler.py`). Requests come and go between steps.
"""

from collections import abc, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Details, Sample, Update
from glmforge.generate.grammar import Grammars
from glmforge.generate.memory import CacheMemory
from glmforge.generate.params import GREEDY, RequestError, SamplingParams
from glmforge.generate.record import record_experts, score_prompts
from glmforge.generate.runner import Runner
from glmforge.generate.sampler import Chosen, choose_tokens
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Place, Request, Sequence
from glmforge.generate.step import step_tokens
from glmforge.generate.text import TextStream
from glmforge.kernels.random import fold


@dataclass(frozen=True)
class EngineConfig:
    """Limits of an engine.

    Attributes:
        cache_bytes: memory for keys and values on this rank.
        page_size: tokens of a page.
        max_sequences: so many run at the same time.
        max_step_tokens: so many tokens are computed in a step; long prompts take several.
        share_prefixes: whether requests that begin alike share pages.
        seed: of the requests that have none.
    """

    cache_bytes: int = 1 << 28
    page_size: int = 16
    max_sequences: int = 64
    max_step_tokens: int = 512
    share_prefixes: bool = True
    seed: int = 0


class Engine:
    """Generates from what `runner` runs; with a tokenizer it gives text too, and knows stop strings and grammars."""

    def __init__(
        self, runner: Runner, config: EngineConfig = EngineConfig(), tokenizer: Tokenizer | None = None
    ) -> None:
        self.runner, self.config, self.tokenizer = runner, config, tokenizer
        self._grammars = None if tokenizer is None else Grammars(tokenizer)
        num_pages = config.cache_bytes // runner.page_bytes(config.page_size)
        self.memory = CacheMemory(num_pages, config.page_size, share_prefixes=config.share_prefixes)
        self.scheduler = Scheduler(self.memory, config.max_sequences, config.max_step_tokens)
        self.runner.allocate(num_pages, config.page_size)
        self._num_requests = 0
        self._siblings: dict[int, list[Sequence]] = {}
        """By request, samples that begin when the prompt is computed."""

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.sequences

    def add(self, prompt: abc.Sequence[int], params: SamplingParams = GREEDY) -> int:
        """Queue a request; its number. Raises `RequestError` for one that can never be served."""
        self._check(prompt, params)
        if params.has_grammar and not params.stop_ids and self.tokenizer is not None:
            params = replace(params, stop_ids=self.tokenizer.stop_ids)
        number = self._num_requests
        seed = int(fold(torch.tensor(self.config.seed), number)) if params.seed is None else params.seed
        samples = self._sequences(Request(number, tuple(prompt), params, seed))
        self._num_requests += 1
        self._siblings[number] = samples[1:]
        self.scheduler.add(samples[0])
        return number

    def cancel(self, number: int) -> None:
        """End a request, if it has not ended; its pages are free at once."""
        self._siblings.pop(number, None)
        for sequence in self.scheduler.sequences:
            if sequence.request.number == number:
                self.scheduler.finish(sequence, "cancelled")

    def step(self) -> list[Update]:
        """Compute one step; the tokens that it gave. Nothing if nobody waits."""
        steps = self.scheduler.next_step()
        if not steps:
            return []
        tokens = step_tokens(steps, self.config.page_size, self.runner.device)
        ends = accumulate(work.num_wanted for work in steps)
        complete = [(end - 1, work.sequence) for work, end in zip(steps, ends, strict=True) if work.completes]
        logits_LV = self.runner.run(tokens)
        score_prompts(steps, logits_LV)
        if tokens.wants_experts:
            assert self.runner.experts_TMK is not None, "the runner was asked to record them"
            record_experts(steps, self.runner.experts_TMK)
        self.scheduler.advance(steps)
        return self._choose(logits_LV, complete) if complete else []

    def generate(
        self,
        prompts: Iterable[abc.Sequence[int]],
        params: SamplingParams | abc.Sequence[SamplingParams] = GREEDY,
    ) -> list[list[Sample]]:
        """Answers to all prompts, the samples of each."""
        prompts = list(prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        numbers = [self.add(prompt, one) for prompt, one in zip(prompts, each, strict=True)]
        found: dict[tuple[int, int], Sample] = defaultdict(Sample)
        while not self.is_idle:
            for update in self.step():
                found[update.request, update.sample].add(update)
        return [
            [found[number, sample] for sample in range(one.num_samples)]
            for number, one in zip(numbers, each, strict=True)
        ]

    def weights_changed(self, *, recompute: bool = True) -> None:
        """The weights are others now. With `recompute`, what is in the cache is computed again under them."""
        self.memory.forget_prefixes(self.scheduler.running)
        if recompute:
            for sequence in self.scheduler.sequences:
                sequence.forget_record()
            self.scheduler.start_over()

    def check(self) -> None:
        """Raise `AssertionError` unless every page of the cache is accounted for."""
        self.scheduler.check()

    def _sequences(self, request: Request) -> list[Sequence]:
        """All samples of a request."""
        params = request.params
        samples = [Sequence(request, sample, list(request.prompt)) for sample in range(params.num_samples)]
        if self.tokenizer is not None:
            for sequence in samples:
                sequence.text = TextStream(self.tokenizer, params.stop)
        if params.has_grammar and self._grammars is not None:
            matcher = self._grammars.matcher(params)
            for sequence in samples:
                sequence.grammar = matcher.copy()
        return samples

    def _choose(self, logits_LV: Tensor, complete: list[tuple[int, Sequence]]) -> list[Update]:
        """The next token of each sequence, and the first one of samples that begin behind the same prompt.

        Each sequence comes with the row of its logits.
        """
        rows: list[int] = []
        sequences: list[Sequence] = []
        for row, first in complete:
            siblings = self._siblings.pop(first.request.number, [])
            for sibling in siblings:
                self._fork(first, sibling)
            rows += [row] * (1 + len(siblings))
            sequences += [first, *siblings]
        logits_LV = logits_LV if rows == list(range(len(logits_LV))) else logits_LV[rows]
        chosen = choose_tokens(logits_LV, [Place(sequence) for sequence in sequences])
        return [self._append(sequence, one) for sequence, one in zip(sequences, chosen, strict=True)]

    def _append(self, sequence: Sequence, chosen: Chosen) -> Update:
        text, reason = sequence.append(chosen.token)
        details = None
        if reason is not None:
            details = self._details(sequence)
            self.scheduler.finish(sequence, reason)
        return Update(sequence.request.number, sequence.sample, chosen.token, reason, text, chosen.logprob, details)

    def _details(self, sequence: Sequence) -> Details | None:
        params = sequence.request.params
        if not (params.prompt_logprobs or params.experts):
            return None
        return Details(tuple(sequence.prompt_logprobs), sequence.known_experts)

    def _fork(self, first: Sequence, sequence: Sequence) -> None:
        """Let a sample begin behind the prompt that another one has computed, or wait if there is no room."""
        sequence.take_record(first)
        if self.memory.fork(first, sequence, self.runner.copy_page) and self.scheduler.join(sequence):
            return
        self.memory.end(sequence)
        self.scheduler.add(sequence)

    def _check(self, prompt: abc.Sequence[int], params: SamplingParams) -> None:
        vocab_size, limit = self.runner.config.vocab_size, self.runner.config.max_position_embeddings
        if not prompt:
            raise RequestError("prompt: is empty; it needs a token to begin with, such as end-of-text")
        worst = max(prompt, key=lambda token: token if token >= 0 else vocab_size)
        if not 0 <= worst < vocab_size:
            raise RequestError(f"prompt: token {worst} lies outside the vocabulary of {vocab_size:,}")
        params.check_vocabulary(vocab_size)
        if self.tokenizer is None and (params.stop or params.has_grammar):
            raise RequestError(
                f"{'stop' if params.stop else 'grammar'}: is about text, and the engine has token ids only; give it a "
                "tokenizer"
            )
        longest = len(prompt) + params.max_new_tokens
        if longest > limit:
            raise RequestError(
                f"prompt: {len(prompt):,} tokens and max_new_tokens={params.max_new_tokens:,} need {longest:,} "
                f"positions, the model has {limit:,} (max_position_embeddings)"
            )
        if longest > self.memory.num_tokens:
            raise RequestError(
                f"prompt: {len(prompt):,} tokens and max_new_tokens={params.max_new_tokens:,} can never fit a cache of "
                f"{self.memory.num_tokens:,} tokens; give the engine more cache_bytes"
            )
