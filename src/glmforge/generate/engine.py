"""The generation engine: requests in, tokens out, step by step.

Each step computes what the scheduler chose (`scheduler.py`), on the pages that the sequences have (`memory.py`), and
chooses a token for every sequence that is computed to its end (`sampler.py`). Requests come and go between steps.
"""

from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from glmforge.checkpoint.pretrained import load_with_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.answer import Details, Sample, Update
from glmforge.generate.grammar import Grammars
from glmforge.generate.memory import CacheMemory
from glmforge.generate.metrics import Metrics
from glmforge.generate.params import GREEDY, RequestError, SamplingParams
from glmforge.generate.prompts import Prompt, encode_prompt
from glmforge.generate.record import record_experts, score_prompts
from glmforge.generate.runner import Runner, WholeModel
from glmforge.generate.sampler import Chosen, choose_tokens
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Place, Request, Sequence
from glmforge.generate.step import step_tokens
from glmforge.generate.text import TextStream
from glmforge.kernels.random import fold
from glmforge.model import GlmMoe


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
    """Generates from a model on one device, or from what a runner runs.

    Args:
        tokenizer: for prompts and answers that are text, stop strings and grammars; see `encode_prompt` for what else
            it decides.
    """

    def __init__(
        self, model: GlmMoe | Runner, config: EngineConfig = EngineConfig(), *, tokenizer: Tokenizer | None = None
    ) -> None:
        self.runner: Runner = WholeModel(model) if isinstance(model, GlmMoe) else model
        self.config, self.tokenizer, self.metrics = config, tokenizer, Metrics()
        self._grammars = None if tokenizer is None else Grammars(tokenizer)
        num_pages = config.cache_bytes // self.runner.page_bytes(config.page_size)
        self.memory = CacheMemory(num_pages, config.page_size, share_prefixes=config.share_prefixes)
        self.scheduler = Scheduler(self.memory, config.max_sequences, config.max_step_tokens)
        self.runner.allocate(num_pages, config.page_size)
        self._num_requests = 0
        self._siblings: dict[int, list[Sequence]] = {}
        """By request, samples that begin when the prompt is computed."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        config: EngineConfig = EngineConfig(),
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        tokenizer: Path | None = None,
    ) -> Self:
        """Of a run, a checkpoint or an export, with its tokenizer; of a preset, which has none.

        Args:
            dtype, device: as `load_pretrained` takes them.
            tokenizer: a directory with another tokenizer than the model's own.

        Raises:
            CheckpointError, DataError: nothing loadable there, or the tokenizer is another model's.
        """
        model, words = load_with_tokenizer(source, tokenizer, dtype=dtype, device=device)
        return cls(model, config, tokenizer=words)

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.sequences

    def add(self, prompt: Prompt, params: SamplingParams = GREEDY) -> int:
        """Queue a request; its number. Raises `RequestError` for one that can never be served."""
        return self._queue(*self._checked(prompt, params))

    def cancel(self, number: int) -> None:
        """End a request, if it has not ended; its pages are free at once."""
        self._siblings.pop(number, None)
        self.metrics.cancelled(number)
        for sequence in self.scheduler.sequences:
            if sequence.request.number == number:
                self.scheduler.finish(sequence, "cancelled")

    def step(self) -> list[Update]:
        """Compute one step; the tokens that it gave. Nothing if nobody waits.

        Ranks that share a model call this together, those without requests too (see `generate.sharded`).
        """
        steps = self.scheduler.next_step()
        if not steps and not self.runner.is_collective:
            return []
        self.metrics.begin_step(steps, self.scheduler)
        tokens = step_tokens(steps, self.config.page_size, self.runner.device)
        ends = accumulate(work.num_wanted for work in steps)
        complete = [(end - 1, work.sequence) for work, end in zip(steps, ends, strict=True) if work.completes]
        logits_LV = self.runner.run(tokens)
        score_prompts(steps, logits_LV)
        if tokens.wants_experts:
            assert self.runner.experts_TMK is not None, "the runner was asked to record them"
            record_experts(steps, self.runner.experts_TMK)
        self.scheduler.advance(steps)
        updates = self._choose(logits_LV, complete) if complete else []
        self.metrics.end_step([update.request for update in updates])
        return updates

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | abc.Sequence[SamplingParams] = GREEDY,
        *,
        on_update: Callable[[Update], None] | None = None,
    ) -> list[list[Sample]]:
        """Answers to all prompts, the samples of each. `on_update` is called with whatever the steps give meanwhile.

        Raises `RequestError` for a prompt that can never be served; then nothing is generated.
        """
        if isinstance(prompts, str):
            raise RequestError("prompts: is one text; give a list of prompts, such as [text]")
        prompts = list(prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        checked = []
        for place, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            try:
                checked.append(self._checked(prompt, one))
            except RequestError as error:
                raise RequestError(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from None
        numbers = [self._queue(ids, one) for ids, one in checked]
        found = {
            (number, sample): Sample()
            for number, one in zip(numbers, each, strict=True)
            for sample in range(one.num_samples)
        }
        num_open = len(found)
        try:
            while self.runner.anyone(num_open > 0 and not self.is_idle):
                for update in self.step():
                    if on_update is not None:
                        on_update(update)
                    if (sample := found.get((update.request, update.sample))) is not None:
                        sample.add(update)
                        num_open -= sample.finished is not None
        finally:
            for number in numbers:
                self.cancel(number)
        answers = iter(found.values())
        return [list(islice(answers, one.num_samples)) for one in each]

    def weights_changed(self, *, recompute: bool = True) -> None:
        """The weights are others now. With `recompute`, what is in the cache is computed again under them."""
        self.runner.weights_changed()
        self.memory.forget_prefixes(self.scheduler.running)
        if recompute:
            for sequence in self.scheduler.sequences:
                sequence.forget_record()
            self.scheduler.start_over()

    def check(self) -> None:
        """Raise `AssertionError` unless every page of the cache is accounted for."""
        self.scheduler.check()

    def _checked(self, prompt: Prompt, params: SamplingParams) -> tuple[list[int], SamplingParams]:
        ids, params = encode_prompt(prompt, params, self.tokenizer)
        self._check(ids, params)
        return ids, params

    def _queue(self, ids: list[int], params: SamplingParams) -> int:
        number = self._num_requests
        seed = int(fold(torch.tensor(self.config.seed), number)) if params.seed is None else params.seed
        samples = self._sequences(Request(number, tuple(ids), params, seed))
        self._num_requests += 1
        self._siblings[number] = samples[1:]
        self.scheduler.add(samples[0])
        self.metrics.asked(number)
        return number

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
            details = Details.of(sequence)
            self.scheduler.finish(sequence, reason)
        return Update(sequence.request.number, sequence.sample, chosen.token, reason, text, chosen.logprob, details)

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
        if params.experts and not self.runner.knows_experts:
            raise RequestError(
                "experts: are not known under tp and pp, whose ranks have a part of them each; leave it out"
            )
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
