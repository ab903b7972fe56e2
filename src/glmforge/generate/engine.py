"""The generation engine: requests in, tokens out, step by step.

Each step computes what the scheduler chose (`scheduler.py`), on the pages that the sequences have (`memory.py`), and
chooses a token for every sequence that is computed to its end (`sampler.py`). Requests come and go between steps.
"""

from collections import abc
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from glmforge.checkpoint.pretrained import load_with_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.admission import refuse_impossible
from glmforge.generate.answer import Details, Sample, Update
from glmforge.generate.config import DEFAULTS, EngineConfig
from glmforge.generate.grammar import Grammars
from glmforge.generate.memory import CacheMemory
from glmforge.generate.metrics import Metrics
from glmforge.generate.params import GREEDY, RequestError, SamplingParams
from glmforge.generate.place import Place
from glmforge.generate.prompts import Prompt, encode_prompt
from glmforge.generate.record import record_experts, score_prompts
from glmforge.generate.runner import Runner, WholeModel
from glmforge.generate.sampler import Chosen, choose_tokens
from glmforge.generate.scheduler import Scheduler
from glmforge.generate.sequence import Request, Sequence
from glmforge.generate.speculate.drafter import Computed, computed_by
from glmforge.generate.speculate.speculation import Speculation, make_drafter
from glmforge.generate.step import logits_rows, step_tokens
from glmforge.generate.text import TextStream
from glmforge.kernels.random import fold
from glmforge.model import GlmMoe


class Engine:
    """Generates from a model on one device, or from what a runner runs.

    Args:
        tokenizer: for prompts and answers that are text, stop strings and grammars; see `encode_prompt` for what else
            it decides.
    """

    def __init__(
        self, model: GlmMoe | Runner, config: EngineConfig = DEFAULTS, *, tokenizer: Tokenizer | None = None
    ) -> None:
        self.runner: Runner = (
            WholeModel(model, with_mtp=config.drafter == "mtp") if isinstance(model, GlmMoe) else model
        )
        self.config, self.tokenizer, self.metrics = config, tokenizer, Metrics()
        self._grammars = None if tokenizer is None else Grammars(tokenizer)
        page_bytes = self.runner.page_bytes(config.page_size)
        num_pages = config.cache_bytes // page_bytes
        if num_pages == 0:
            raise GlmforgeError(
                f"cache_bytes: {config.cache_bytes:,} has no room for a page of {config.page_size} tokens, which takes "
                f"{page_bytes:,} bytes; give more (--cache-gib)"
            )
        try:
            self.memory = CacheMemory(num_pages, config.page_size, share_prefixes=config.share_prefixes)
            self.runner.allocate(num_pages, config.page_size)
        except (MemoryError, RuntimeError) as error:  # what Python and PyTorch raise where there is too little memory
            raise GlmforgeError(
                f"cache_bytes: {config.cache_bytes:,} bytes cannot be had on {self.runner.device}; give less "
                "(--cache-gib)"
            ) from error
        self.scheduler = Scheduler(self.memory, config.max_sequences, config.max_step_tokens)
        self.speculation: Speculation | None = None
        if config.drafter is not None:
            drafter = make_drafter(config.drafter, self.runner, config.page_size)
            self.speculation = Speculation(drafter, self.scheduler, config.num_drafts, config.max_draft_tokens)
        self._num_requests = 0
        self._siblings: dict[int, list[Sequence]] = {}
        """By request, samples that begin when the prompt is computed."""

    @classmethod
    def load(
        cls,
        source: str | Path,
        config: EngineConfig = DEFAULTS,
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
        ids, params = encode_prompt(prompt, params, self.tokenizer)
        refuse_impossible(
            ids,
            params,
            self.runner,
            cache_tokens=self.memory.num_tokens,
            has_tokenizer=self.tokenizer is not None,
        )
        number = self._num_requests
        seed = int(fold(torch.tensor(self.config.seed), number)) if params.seed is None else params.seed
        samples = self._sequences(Request(number, tuple(ids), params, seed))
        self._num_requests += 1
        self._siblings[number] = samples[1:]
        self.scheduler.add(samples[0])
        self.metrics.asked(number)
        return number

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
        if not self.is_idle and self.runner.weights_differ(closely=not self.scheduler.running):
            self.weights_changed()
        steps = self.scheduler.next_step()
        if not steps and not self.runner.is_collective:
            return []
        self.metrics.begin_step(steps, self.scheduler)
        tokens = step_tokens(steps, self.config.page_size, self.runner.device)
        logits_LV = self.runner.run(tokens)
        computed, rows = computed_by(steps), logits_rows(steps)
        score_prompts(steps, logits_LV)
        if tokens.wants_experts:
            assert self.runner.experts_TMK is not None, "the runner was asked to record them"
            record_experts(steps, self.runner.experts_TMK)
        self.scheduler.advance(steps)
        self._begin_samples(computed, rows)
        updates = self._choose(logits_LV, rows)
        if self.speculation is not None:
            self.speculation.draft(computed)
        self.metrics.end_step([update.request for update in updates])
        return updates

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | abc.Sequence[SamplingParams] = GREEDY,
        *,
        on_update: Callable[[Update], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> list[list[Sample]]:
        """Answers to all prompts, the samples of each. `on_update` is called with whatever the steps give meanwhile.

        `stopped` is asked before each step; once it is true, the answers end as they are.
        Raises `RequestError` for a prompt that can never be served; then nothing is generated.
        """
        if isinstance(prompts, str):
            raise RequestError("prompts: is one text; give a list of prompts, such as [text]")
        prompts = list(prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        numbers: list[int] = []
        found: dict[tuple[int, int], Sample] = {}
        try:
            for prompt, one in zip(prompts, each, strict=True):
                numbers.append(self._add_next(len(numbers), prompt, one))
                found |= {(numbers[-1], sample): Sample() for sample in range(one.num_samples)}
            num_open = len(found)
            while self.runner.anyone(num_open > 0 and not self.is_idle and not stopped()):
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
        """The weights are others now. With `recompute`, what is in the cache is computed again under them.

        Tokens that were given stay, with the log-probabilities and experts that were told of them under the old ones.
        Without this call, changes of a whole model's weights are noticed when the engine begins to work; while it
        works, those that PyTorch counts (`Tensor._version`), which a fused optimizer's are not. Sharded weights, and
        modules that took the place of others, have to be told.
        """
        self.runner.weights_changed()
        self.memory.forget_prefixes(self.scheduler.running)
        if recompute:
            self.scheduler.start_over()

    def check(self) -> None:
        """Raise `AssertionError` unless every page of the cache is accounted for."""
        self.scheduler.check()

    def _add_next(self, place: int, prompt: Prompt, params: SamplingParams) -> int:
        """`add`; errors say which of many prompts it is."""
        try:
            return self.add(prompt, params)
        except RequestError as error:
            raise RequestError(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from None

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

    def _begin_samples(self, computed: list[Computed], rows: dict[Sequence, int]) -> None:
        """Let samples begin behind a prompt that is computed: the same logits, and the same states on the last page."""
        for first, start, place in list(computed):
            for sibling in self._siblings.pop(first.request.number, []) if first in rows else ():
                self._fork(first, sibling)
                rows[sibling] = rows[first]
                begin = max(start, (first.num_cached - 1) // self.config.page_size * self.config.page_size)
                computed.append(Computed(sibling, begin, place + begin - start))

    def _choose(self, logits_LV: Tensor, rows: dict[Sequence, int]) -> list[Update]:
        """The next token of each sequence, and the one behind it as long as it was drafted.

        `rows` has the row of logits after the last token of each sequence; those after its drafts follow.
        """
        updates = []
        while rows:
            all_rows = list(rows.values()) == list(range(len(logits_LV)))
            places = [Place(sequence) for sequence in rows]
            all_chosen = choose_tokens(logits_LV if all_rows else logits_LV[list(rows.values())], places)
            confirmed: dict[Sequence, int] = {}
            for (sequence, row), chosen in zip(rows.items(), all_chosen, strict=True):
                was_drafted = sequence.append(chosen.token)
                self.metrics.num_accepted += was_drafted
                updates.append(self._update(sequence, chosen))
                if was_drafted and sequence.finished is None:
                    confirmed[sequence] = row + 1
            rows = confirmed
        return updates

    def _update(self, sequence: Sequence, chosen: Chosen) -> Update:
        """What is to be told of its last token; the sequence ends if that is the last of all."""
        text, reason = sequence.read_last()
        if reason is not None:
            self.scheduler.finish(sequence, reason)
        return Update(
            sequence.request.number,
            sequence.sample,
            chosen.token,
            reason,
            text,
            chosen.logprob,
            sequence.draft_counts,
            None if reason is None else Details.of(sequence),
        )

    def _fork(self, first: Sequence, sequence: Sequence) -> None:
        """Let a sample begin behind the prompt that another one has computed, or wait if there is no room."""
        sequence.take_record(first)
        if self.memory.fork(first, sequence, self.runner.copy_page) and self.scheduler.join(sequence):
            return
        self.memory.end(sequence)
        self.scheduler.add(sequence)
