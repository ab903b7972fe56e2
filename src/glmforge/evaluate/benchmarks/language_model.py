"""The generation engine as a language model of lm-evaluation-harness.

The harness sees one process: it hands over all requests of a kind at once, and the engine decides what runs together.
With sharded weights every rank runs the same tasks, answers its share of the requests, and gathers the others' replies.
Replies do not depend on what else runs: a sample's seed is made from its request, and no text is padded.

Requests are answered in the order of their tokens, so that few-shot examples and questions that several requests begin
with are computed once (`prefixes.py`). Choices of one token after the same question take a single forward pass.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from glmforge.checkpoint.collective import all_gather
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks.model import (
    Generation,
    Model,
    Progress,
    PromptText,
    encode_pair,
    rendered,
    stop_strings,
)
from glmforge.evaluate.benchmarks.prefixes import in_chunks, shared_prefixes
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest
from glmforge.generate.answer import Sample
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet

Ids = tuple[int, ...]
Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a context and of the continuation to score."""


class EngineRequest(NamedTuple):
    """A request for the engine. Its replies, one for each digest, are the samples, or the choices of its last token."""

    ids: Ids
    params: SamplingParams
    digests: tuple[str, ...]
    is_truncated: bool

    def read(self, samples: Sequence[Sample], seconds: float) -> dict[str, Reply]:
        """The replies in what the engine answered, by their digests."""
        read = self._scored if self.params.logprob_tokens else self._written
        replies = [replace(reply, is_truncated=self.is_truncated, seconds=seconds) for reply in read(samples)]
        return dict(zip(self.digests, replies, strict=True))

    def _written(self, samples: Sequence[Sample]) -> list[Reply]:
        return [
            Reply(
                "text",
                len(sample.tokens),
                len(self.ids),
                text=sample.text,
                finished="stop" if sample.finished == "stop" else "length",
                logprob=sum(one.logprob for one in sample.logprobs),
            )
            for sample in samples
        ]

    def _scored(self, samples: Sequence[Sample]) -> list[Reply]:
        start = self.params.prompt_logprobs_from
        (sample,) = samples
        before = sample.details.prompt_logprobs if sample.details is not None else []
        logprob = sum(one.logprob for one in before)
        is_greedy = all(one.top[0][0] == token for one, token in zip(before, self.ids[start:], strict=True))
        (last,) = sample.logprobs
        return [
            Reply(
                "score",
                len(self.ids) - start + 1,
                start,
                logprob=logprob + own,
                is_greedy=is_greedy and last.top[0][0] == token,
            )
            for token, own in zip(self.params.logprob_tokens, last.named, strict=True)
        ]


class EngineLM(Model, TemplateLM):
    """A language model of the harness on `engine`, which needs a tokenizer.

    Args:
        is_chat: prompts are conversations (the harness applies the chat template).
        alive: called before each step of the engine.
    """

    def __init__(
        self,
        engine: Engine,
        replies: ReplyStore,
        generation: Generation,
        *,
        is_chat: bool = False,
        on_progress: Progress | None = None,
        alive: Alive = quiet,
    ) -> None:
        super().__init__(replies, generation, engine.tokenizer, on_progress)
        if engine.tokenizer is None:
            raise GlmforgeError("the model has no tokenizer; give a run, a checkpoint or an export, or --tokenizer")
        self.engine, self.is_chat, self._alive = engine, is_chat, alive
        self.words: Tokenizer = engine.tokenizer
        replies.known |= _gathered(replies.known)

    @property
    def eot_token_id(self) -> int:
        return self.words.end_of_text_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: object) -> list[int]:
        """Token ids; a rendered conversation has its own."""
        return list(string.ids) if isinstance(string, PromptText) else self.words.encode(string)

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> PromptText:
        """A conversation as a prompt; without a generation prompt its last message is the beginning of the answer."""
        thinking = self.generation.thinking
        ids = rendered(self.words, chat_history, tools, begins_answer=not add_generation_prompt, thinking=thinking)
        return PromptText.of(self.words.decode(ids), ids)

    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        pairs = [self._pairs(request) for request in requests]
        replies = iter(self._score([pair for some in pairs for pair in some]))
        return [_joined([next(replies) for _ in some]) for some in pairs]

    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        asked = [self._to_write(request) for request in requests]
        self._answer(asked)
        return [[self.replies.known[digest] for digest in one.digests] for one in asked]

    def missing(self, requests: Sequence[Instance]) -> list[EngineRequest]:
        """What the engine would be asked for requests of one kind, without what is known already."""
        if requests and requests[0].request_type == "generate_until":
            return self._missing([self._to_write(request) for request in requests])
        return self._missing(self._to_score([pair for request in requests for pair in self._pairs(request)])[1])

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **kwargs: object
    ) -> list[tuple[float, bool]]:
        replies = self._score([(context, continuation) for _, context, continuation in requests])
        return [(reply.logprob or 0.0, bool(reply.is_greedy)) for reply in replies]

    # Requests for the engine.

    @property
    def _positions(self) -> int:
        """Of prompt and answer together."""
        return min(self.engine.runner.config.max_position_embeddings, self.engine.memory.num_tokens)

    def _to_write(self, request: Instance) -> EngineRequest:
        context, settings = request.args[:2]
        ids, limit, wanted = tuple(self.tok_encode(context)), self._positions, self.generation.longest(settings)
        # A long prompt shortens the answer down to a quarter of the positions; then it loses its beginning.
        length = min(wanted, max(limit - len(ids), limit // 4))
        kept = ids[max(0, len(ids) - (limit - length)) :]
        params = SamplingParams(
            max_new_tokens=length,
            stop=() if self.is_chat and self.generation.thinking else stop_strings(settings),
            logprobs=0,
            **self.generation.sampling(settings),
        )
        content = asdict(params) | {"seed": self.generation.seed}
        number = self.generation.num_samples
        digests = tuple(request_digest("text", kept, content, sample) for sample in range(number))
        seed = int(digests[0][:15], 16)  # of its content: it does not depend on what else runs
        return EngineRequest(kept, replace(params, num_samples=number, seed=seed), digests, len(kept) < len(ids))

    def _pairs(self, request: Instance) -> list[Pair]:
        """What is to be scored: one pair, or of a whole text as many as it takes."""
        if request.request_type == "loglikelihood_rolling":
            return self._windows(self.tok_encode(request.args[0]))
        return [encode_pair(self.words, *request.args[:2])]

    def _windows(self, ids: Sequence[int]) -> list[Pair]:
        """Pairs that score each token of a text once, with as much before it as there is room."""
        ids, size = [self.eot_token_id, *ids], self._positions
        ends = [(start, min(start + size, len(ids))) for start in range(1, len(ids), size)]
        return [(ids[max(0, stop - size - 1) : start], ids[start:stop]) for start, stop in ends]

    def _score(self, pairs: Sequence[Pair]) -> list[Reply]:
        """Score each continuation after its context."""
        digests, asked = self._to_score(pairs)
        self._answer(asked)
        return [self.replies.known[digest] for digest in digests]

    def _to_score(self, pairs: Sequence[Pair]) -> tuple[list[str], list[EngineRequest]]:
        """The digest of each pair's reply, and the requests.

        The last token of a continuation need not be run: the model's output before it has its probability. So pairs
        that differ only in it, such as the choices A to D, are one request.
        """
        digests, groups = [], defaultdict[tuple[Ids, int, bool], dict[int, str]](dict)
        for context, continuation in pairs:
            if not continuation:
                raise DataError("a task asks for the log-likelihood of an empty text; check its doc_to_choice")
            ids = (*context, *continuation)
            kept = ids[max(0, len(ids) - self._positions - 1) :]  # the last token takes no position
            start = max(1, len(kept) - len(continuation))
            digests.append(request_digest("score", kept, {"from": start}))
            groups[kept[:-1], start, len(kept) < len(ids)][kept[-1]] = digests[-1]
        return digests, [
            EngineRequest(
                ids,
                SamplingParams(
                    max_new_tokens=1,
                    logprobs=1,
                    logprob_tokens=tuple(choices),
                    prompt_logprobs=len(ids) > start,
                    prompt_logprobs_from=start,
                ),
                tuple(choices.values()),
                is_truncated,
            )
            for (ids, start, is_truncated), choices in groups.items()
        ]

    # How they are answered.

    def _answer(self, asked: Sequence[EngineRequest]) -> None:
        """Make all replies known: have the missing ones answered, and keep them. Collective."""
        share, num_shares, is_first = share_of(self.engine)
        mine = sorted(self._missing(asked)[share::num_shares], key=lambda one: one.ids)
        chunks = in_chunks([one.ids for one in mine], self.engine.memory.num_tokens // 2)
        new: dict[str, Reply] = {}
        num_done = itertools.count(1)
        for number in range(_most(len(chunks))):  # every rank takes part in every chunk
            chunk = mine[chunks[number]] if number < len(chunks) else []
            self._warm([one.ids for one in chunk])
            started = time.perf_counter()

            def keep(
                index: int, samples: list[Sample], chunk: Sequence[EngineRequest] = chunk, started: float = started
            ) -> None:
                if (error := next((one.error for one in samples if one.error is not None), None)) is not None:
                    raise GlmforgeError(f"a request of the benchmark failed: {error}")
                replies = chunk[index].read(samples, time.perf_counter() - started)
                if is_first:
                    new.update(replies)
                    self.replies.add(replies)
                self.on_progress(next(num_done), len(mine))

            self.engine.generate(
                [one.ids for one in chunk], [one.params for one in chunk], on_answer=keep, alive=self._alive
            )
        self.replies.known.update(_gathered(new))

    def _missing(self, asked: Sequence[EngineRequest]) -> list[EngineRequest]:
        """Those that not all replies are known to, each once."""
        known = self.replies.known
        return list({one.digests: one for one in asked if not known.keys() >= {*one.digests}}.values())

    def _warm(self, prompts: Sequence[Ids]) -> None:
        """Put what several of these prompts begin with into the cache. Collective."""
        levels = shared_prefixes(prompts, self.engine.config.page_size) if self.engine.config.share_prefixes else []
        for depth in range(_most(len(levels))):
            self.engine.generate(levels[depth] if depth < len(levels) else [], SamplingParams(max_new_tokens=1))


def _joined(parts: Sequence[Reply]) -> Reply:
    """The reply to a whole text from those to its windows."""
    if len(parts) == 1:
        return parts[0]
    return Reply("score", sum(one.num_tokens for one in parts), 0, logprob=sum(one.logprob or 0.0 for one in parts))


def share_of(engine: Engine) -> tuple[int, int, bool]:
    """Which share of the requests is this rank's, of how many, and whether it gives the others its replies."""
    runner = engine.runner
    return (runner.share, runner.num_shares, runner.is_first) if isinstance(runner, ShardedModel) else (0, 1, True)


def _most(number: int) -> int:
    """The largest of all ranks' numbers."""
    return max(all_gather(number))


def _gathered(replies: dict[str, Reply]) -> dict[str, Reply]:
    """The replies of all ranks."""
    return {digest: reply for part in all_gather(replies) for digest, reply in part.items()}
