"""The generation engine: requests in, tokens out, step by step.

Each step computes what the scheduler chose (`scheduler.py`), on the pages that the sequences have (`memory.py`), and
chooses a token for every sequence that is computed to its end (`sampler.py`). Requests come and go between steps.

No request hurts another one. What is done for one of them alone, such as following its grammar, ends that request where
it fails, with the reason "error". What fails for all, such as running the model, raises an error; nothing has been
chosen then, and the next step tries again.
"""

import logging
import time
from collections import abc, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from glmforge.checkpoint.pretrained import load_with_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.admission import QueueFullError, refuse_full, refuse_impossible, refuse_tokens
from glmforge.generate.answer import Details, Sample, Update
from glmforge.generate.choosing import choose, failing_alone, one_line
from glmforge.generate.config import DEFAULTS, EngineConfig
from glmforge.generate.following import Following, ended
from glmforge.generate.grammar import RequestGrammar
from glmforge.generate.memory import CacheMemory
from glmforge.generate.metrics import Metrics
from glmforge.generate.params import GREEDY, RequestError, SamplingParams
from glmforge.generate.prompts import Prompt, encode_prompt
from glmforge.generate.record import record_experts, score_prompts
from glmforge.generate.runner import Runner, WholeModel
from glmforge.generate.sampler import Chosen
from glmforge.generate.samples import Samples
from glmforge.generate.scheduler import Scheduler, Work
from glmforge.generate.sequence import Reason, Request, Sequence
from glmforge.generate.speculate.drafter import computed_by
from glmforge.generate.speculate.speculation import Speculation, make_drafter
from glmforge.generate.step import logits_rows, step_tokens
from glmforge.generate.text import TextStream
from glmforge.kernels.random import fold
from glmforge.model import GlmMoe
from glmforge.observe.alive import Alive, quiet
from glmforge.observe.units import counted

logger = logging.getLogger(__name__)

_PATIENCE_S = 0.005
"""Grammars have as long as the step took to say what may come next, at least this; slower ones are passed over."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A request that can be served: see `Engine.prepare`."""

    prompt: tuple[int, ...]
    params: SamplingParams
    grammar: RequestGrammar | None
    adapter: str | None = None


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
        self.following = Following(tokenizer)
        page_bytes = self.runner.page_bytes(config.page_size)
        num_pages = config.cache_bytes // page_bytes
        if num_pages == 0:
            raise GlmforgeError(
                f"cache_bytes: {config.cache_bytes:,} is less than a page of {config.page_size} tokens, which needs "
                f"{page_bytes:,} bytes; raise it (--cache-gib)"
            )
        try:
            self.memory = CacheMemory(num_pages, config.page_size, share_prefixes=config.share_prefixes)
            self.runner.allocate(num_pages, config.page_size)
        except (MemoryError, RuntimeError) as error:  # what Python and PyTorch raise where there is too little memory
            raise GlmforgeError(
                f"cache_bytes: {config.cache_bytes:,} bytes cannot be allocated on {self.runner.device}; lower it "
                "(--cache-gib)"
            ) from error
        self.scheduler = Scheduler(self.memory, config.max_sequences, config.max_step_tokens)
        self.speculation: Speculation | None = None
        if config.drafter is not None:
            drafter = make_drafter(config.drafter, self.runner, config.page_size)
            self.speculation = Speculation(drafter, self.scheduler, config.num_drafts, config.max_draft_tokens)
        self.samples = Samples(self.scheduler, self.runner, self._sequence)
        self._num_requests = 0
        self._version: int | None = None
        self._updates: list[Update] = []
        """Pending updates. Kept if the step fails afterwards."""

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
        return not self.scheduler.sequences and not self._updates

    def add(self, prompt: Prompt, params: SamplingParams = GREEDY) -> int:
        """Queue a request; its number.

        Raises:
            RequestError: it can never be served.
            QueueFullError: as many wait as may (`EngineConfig`).
        """
        return self.queue(self.prepare(prompt, params))

    def prepare(self, prompt: Prompt, params: SamplingParams = GREEDY, *, adapter: str | None = None) -> Prepared:
        """What `add` does before a request is queued: encode it, refuse what can never be served, compile its grammar.
        `adapter` is the name of one that the runner has (`Runner.adapters`).

        That may take seconds. It may be done in another thread while the engine steps. Raises `RequestError`.
        """
        if adapter is not None and adapter not in self.runner.adapters:
            raise RequestError(f"adapter: {adapter!r:.80} is not loaded")
        ids, params = encode_prompt(prompt, params, self.tokenizer)
        refuse_impossible(
            ids,
            params,
            self.runner,
            cache_tokens=self.memory.num_tokens,
            has_tokenizer=self.tokenizer is not None,
        )
        return Prepared(tuple(ids), params, self.following.compile(params), adapter)

    def queue(self, prepared: Prepared, *, has_place: bool = False, priority: int = 0) -> int:
        """Queue a request that is prepared, once; its number. Raises `QueueFullError`, and may be called again then.

        Lower priorities go first. With `has_place` it was counted in the queue before it was prepared: samples of
        others may have come since.
        """
        refuse = refuse_tokens if has_place else refuse_full
        refuse(self.scheduler, self.config, len(prepared.prompt))
        number, params = self._num_requests, prepared.params
        seed = int(fold(torch.tensor(self.config.seed), number)) if params.seed is None else params.seed
        self._num_requests += 1
        self.following.add(number, prepared.grammar)
        self.samples.add(Request(number, prepared.prompt, params, seed, priority, prepared.adapter))
        self.metrics.asked(number)
        return number

    def cancel(self, number: int) -> None:
        """End a request, if it has not ended; its pages are free at once."""
        self.metrics.cancelled(number)
        self._drop(number, "cancelled")

    def step(self) -> list[Update]:
        """Compute one step; returns new tokens and finished requests. Empty if no request waits.

        Ranks that share a model call this together, those without requests too (see `generate.sharded`).

        Raises:
            Exception: what is not one request's fault, such as no memory for the model. What has been chosen before is
                reported by the next step that succeeds.
        """
        if not self.is_idle and self.runner.weights_differ(closely=not self.scheduler.running):
            self.weights_changed()
        self._poll_grammars(0.0)
        steps = self.scheduler.next_step()
        if steps or self.runner.is_collective:
            try:
                self._compute(steps)
            except BaseException:
                for sequence in self.scheduler.running:
                    sequence.settle()
                raise
        else:
            self._poll_grammars(_PATIENCE_S)
        updates, self._updates = self._updates, []
        return updates

    def _compute(self, steps: list[Work]) -> None:
        """Run the model and choose tokens, which changes nothing that is not made again by another try; then take them
        up, which does not fail but for single requests; then draft, and ask what may come next."""
        began = time.perf_counter()
        self.metrics.begin_step(steps, self.scheduler)
        tokens = step_tokens(steps, self.config.page_size, self.runner.device)
        logits_LV = self.runner.run(tokens)
        computed, rows = computed_by(steps), logits_rows(steps)
        scored = [sequence for sequence in rows if sequence.request.params.max_new_tokens == 0]
        rows = {sequence: row for sequence, row in rows.items() if sequence not in scored}
        score_prompts(steps, logits_LV)
        if tokens.wants_experts:
            assert self.runner.experts_TMK is not None, "the runner was asked to record them"
            record_experts(steps, self.runner.experts_TMK)
        siblings = self.samples.siblings(rows)
        rows |= {sibling: rows[first] for first, some in siblings.items() for sibling in some}
        try:
            chosen = choose(logits_LV, rows)
        except Exception as error:
            culprits = failing_alone(rows, logits_LV.shape[1])
            if not culprits:
                raise
            logger.debug("a step is computed again without the requests that made it fail", exc_info=error)
            for number, reason in culprits.items():
                self._fail(number, f"its settings cannot be applied: {one_line(reason)}")
            return
        self.scheduler.advance(steps)
        for sequence in scored:
            self.metrics.cancelled(sequence.request.number)  # no first token is waited for
            self._tell(sequence, "length", "")
        self.samples.fork(computed, siblings)
        try:
            for sequence, choices in chosen.items():
                self._take_up(sequence, choices)
            if self.speculation is not None:
                self.speculation.draft(computed)
        finally:
            self.following.ask(chosen)
        self._poll_grammars(max(_PATIENCE_S, time.perf_counter() - began))
        self.metrics.end_step([update.request for update in self._updates if update.token is not None])

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | abc.Sequence[SamplingParams] = GREEDY,
        *,
        on_update: Callable[[Update], None] | None = None,
        on_answer: Callable[[int, list[Sample]], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        alive: Alive = quiet,
    ) -> list[list[Sample]]:
        """Answers to all prompts, the samples of each, however many may wait at a time. `on_update` is called with
        every update of the steps meanwhile, `on_answer` with the index of a prompt and its samples when all have ended.

        `stopped` is asked before each step; once it is true, the answers end as they are. `alive` is called before
        each step, of other ranks' answers too.
        Raises `RequestError` for a prompt that can never be served; then nothing is generated.
        """
        if isinstance(prompts, str):
            raise RequestError("prompts: is a single text; pass a list of prompts, such as [text]")
        prompts = list(prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
        asked = deque(self._prepare_all(prompts, each))
        answers = [[Sample() for _ in range(one.num_samples)] for one in each]
        num_open = sum(map(len, answers))
        places: dict[int, int] = {}

        def queue() -> None:
            with suppress(QueueFullError):
                while asked:
                    places[self.queue(asked[0])] = len(places)
                    asked.popleft()

        try:
            queue()
            while self.runner.anyone(num_open > 0 and not self.is_idle and not stopped()):
                alive(f"generation, {counted(num_open, 'answer')} to finish")
                for update in self.step():
                    if on_update is not None:
                        on_update(update)
                    if (place := places.get(update.request)) is not None:
                        answers[place][update.sample].add(update)
                        if update.finished is not None:
                            num_open -= 1
                            if on_answer is not None and all(sample.finished for sample in answers[place]):
                                on_answer(place, answers[place])
                queue()
            for sequence in self.scheduler.sequences:  # stopped in the middle: what was recorded so far
                if (place := places.get(sequence.request.number)) is not None:
                    answers[place][sequence.sample].details = Details.of(sequence)
        finally:
            for number in places:
                self.cancel(number)
        return answers

    def weights_changed(self, *, recompute: bool = True, version: int | None = None) -> None:
        """The weights are others now. With `recompute`, what is in the cache is computed again under them.

        Tokens that are sampled from now on are marked with `version`.

        Generated tokens stay, with the log-probabilities and experts reported under the old weights.
        Without this call, changes of a whole model's weights are noticed when the engine begins to work; while it
        works, those that PyTorch counts (`Tensor._version`), which a fused optimizer's are not. Sharded weights, and
        replaced modules, must be reported.
        """
        self._version = version
        self.runner.weights_changed()
        self.memory.forget_prefixes(self.scheduler.running)
        if recompute:
            self.scheduler.start_over()

    def check(self) -> None:
        """Raise `AssertionError` unless every page of the cache is accounted for."""
        self.scheduler.check()

    def _prepare_all(self, prompts: Iterable[Prompt], params: Iterable[SamplingParams]) -> Iterator[Prepared]:
        """`prepare`; errors say which of many prompts it is."""
        for place, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            try:
                yield self.prepare(prompt, one)
            except RequestError as error:
                raise RequestError(f"prompts[{place}]: {str(error).removeprefix('prompt: ')}") from None

    def _sequence(self, request: Request, sample: int) -> Sequence:
        """A sample of a request, before it begins."""
        sequence = Sequence(request, sample, list(request.prompt))
        if self.tokenizer is not None:
            sequence.text = TextStream(self.tokenizer, request.params.stop)
        sequence.grammar = self.following.sample(request.number)
        return sequence

    def _take_up(self, sequence: Sequence, chosen: list[Chosen]) -> None:
        """Give a sequence its tokens, up to the one that ends it."""
        for one in chosen:
            if sequence.finished is not None:
                return
            self.metrics.num_accepted += sequence.append(one.token)
            try:
                text, reason = sequence.read_last()
            except Exception as error:  # noqa: BLE001 - it comes of its own text
                self._fail(sequence.request.number, f"token {one.token} of the answer: {one_line(error)}")
                return
            self._tell(sequence, reason, text, one)
        if sequence.finished is None and not chosen:
            self._fail(
                sequence.request.number,
                f"grammar: behind {counted(len(sequence.answer), 'token')} of the answer it allows only excluded "
                "tokens (control tokens, stop_ids, or beyond vocab_size); change the grammar",
            )
        elif sequence.finished is None:
            sequence.settle()

    def _tell(self, sequence: Sequence, reason: Reason | None, text: str, chosen: Chosen | None = None) -> None:
        """Tell of a token, and end the sequence if there is a reason; without a token, of the end alone."""
        if reason is not None:
            self._finish(sequence, reason)
        self._updates.append(
            Update(
                sequence.request.number,
                sequence.sample,
                None if chosen is None else chosen.token,
                reason,
                text,
                None if chosen is None else chosen.logprob,
                sequence.draft_counts,
                None if reason is None else Details.of(sequence),
                stop=sequence.stopped_by,
                num_cached=sequence.num_found or 0,
                version=self._version,
            )
        )

    def _poll_grammars(self, seconds: float) -> None:
        """Hear what grammars say within this many seconds; sequences end that are complete or as long as may be."""
        heard = self.following.hear(seconds)
        for number, error in heard.items():
            if error is not None:
                self._fail(number, error)
        if heard:
            for sequence, reason in ended(one for one in self.scheduler.sequences if one.request.number in heard):
                self._tell(sequence, reason, sequence.finish_text())

    def _fail(self, number: int, words: str) -> None:
        """End a request alone; its samples have the reason "error"."""
        self.metrics.cancelled(number)
        self._updates += [Update(number, sample, None, "error", error=words) for sample in self._drop(number, "error")]

    def _drop(self, number: int, reason: Reason) -> list[int]:
        """End the samples of a request that have not ended; their numbers."""
        mine = [sequence for sequence in self.scheduler.sequences if sequence.request.number == number]
        for sequence in mine:
            self.scheduler.finish(sequence, reason)
        self.following.close(number)
        return [*(sequence.sample for sequence in mine), *self.samples.drop(number)]

    def _finish(self, sequence: Sequence, reason: Reason) -> None:
        """End a sequence; the grammar of the last one of a request is not needed any more."""
        self.scheduler.finish(sequence, reason)
        number = sequence.request.number
        if sequence.grammar is None or self.samples.left(number):
            return
        if all(other.request.number != number for other in self.scheduler.sequences):
            self.following.close(number)
