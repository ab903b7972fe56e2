"""The generation engine as a language model of lm-evaluation-harness.

The harness sees one process: it hands over all requests of a kind at once, and the engine decides what runs together.
With sharded weights every rank runs the same tasks, answers its share of the requests, and hears the others' replies.
Replies do not depend on what else runs: a sample's seed is made from its request, and no text is padded.

Requests are answered in the order of their tokens, so that few-shot examples and questions that several requests begin
with are computed once (`prefixes.py`). Choices of one token behind the same question take a single forward pass.

In a conversation what messages spell is text: the template gives token ids, and the string that the harness carries
about holds them (`PromptText`).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self, TypeVar

import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks.prefixes import in_chunks, shared_prefixes
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest
from glmforge.evaluate.benchmarks.visible import stop_strings, visible_answer
from glmforge.generate.answer import Sample
from glmforge.generate.engine import Engine
from glmforge.generate.params import MAX_TOKENS, SamplingParams
from glmforge.generate.sharded import ShardedModel
from glmforge.observe.alive import Alive, quiet

Ids = tuple[int, ...]
T = TypeVar("T")


class PromptText(str):
    """A rendered conversation, and its token ids, in which control tokens are only where the template writes them."""

    ids: Ids

    @classmethod
    def of(cls, text: str, ids: Iterable[int]) -> Self:
        prompt = cls(text)
        prompt.ids = tuple(ids)
        return prompt


@dataclass(frozen=True)
class Generation:
    """How answers are written; it replaces what a task's own settings say, where it is not None.

    Attributes:
        max_new_tokens: longest answer; None takes the task's, or `DEFAULT_MAX_NEW_TOKENS`.
        temperature, top_p, top_k: None takes the task's; 0 is greedy.
        num_samples: answers to each prompt.
        seed: of all of them.
        thinking: of chat prompts: whether the model is to reason first.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    num_samples: int = 1
    seed: int = 0
    thinking: bool = True


DEFAULT_MAX_NEW_TOKENS = 1024


class AnswerProgress(NamedTuple):
    """Requests and tokens so far, of all that this call of the harness asks."""

    num_done: int
    num_requests: int
    num_tokens: int


class EngineRequest(NamedTuple):
    """A request for the engine; `digests` are those of its replies: of its samples, or of its choices."""

    ids: Ids
    params: SamplingParams
    digests: tuple[str, ...]
    read: Callable[[Sequence[Sample], float], list[Reply]]


class EngineLM(TemplateLM):
    """A language model of the harness on `engine`.

    Args:
        engine: with a tokenizer.
        replies: those that are there already, and where new ones are kept.
        generation: how answers are written.
        is_chat: prompts are conversations (the harness applies the chat template).
        on_progress: called when a request is answered on this rank.
        alive: called before each step of the engine.
    """

    def __init__(
        self,
        engine: Engine,
        replies: ReplyStore,
        generation: Generation = Generation(),
        *,
        is_chat: bool = False,
        on_progress: Callable[[AnswerProgress], None] | None = None,
        alive: Alive = quiet,
    ) -> None:
        super().__init__()
        if engine.tokenizer is None:
            raise GlmforgeError("the model has no tokenizer; give a run, a checkpoint or an export, or --tokenizer")
        self.engine, self.replies, self.generation, self.is_chat = engine, replies, generation, is_chat
        self.words: Tokenizer = engine.tokenizer
        self._on_progress, self._alive = on_progress, alive
        replies.known |= _gathered(replies.known)

    # What the harness asks of a tokenizer.

    @property
    def eot_token_id(self) -> int:
        return self.words.end_of_text_id

    @property
    def tokenizer_name(self) -> str:
        return self.words.fingerprint

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source, which the harness stores with its results."""
        return self.words.chat_template if chat_template else None

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
        history = list(chat_history)
        begun = "" if add_generation_prompt or not history else history.pop()["content"]
        ids = self.words.apply_chat_template(
            history, tools, add_generation_prompt=True, thinking=self.generation.thinking
        ) + self.words.encode(begun)
        return PromptText.of(self.words.decode(ids), ids)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if isinstance(context, PromptText):
            return list(context.ids), self.words.encode(continuation)
        return super()._encode_pair(context, continuation)

    # Requests, as the harness makes them.

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation behind its context, and whether greedy decoding would give it."""
        return [_pair(reply) for reply in self.score(requests)]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: object
    ) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        return [_pair(reply) for reply in self._score(pairs)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of whole texts: in windows of the model's positions, each token scored once."""
        windows = [self._windows_of(request) for request in requests]
        scored = iter(self._score([pair for some in windows for pair in some]))
        return [sum(_pair(next(scored))[0] for _ in some) for some in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """An answer to each request, as its task reads it; of several samples the first."""
        written = zip(requests, self.write(requests), strict=True)
        return [visible_answer(samples[0].text, stop_strings(request.args[1])) for request, samples in written]

    # What they become.

    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        """Replies to requests of the kind "loglikelihood"."""
        return self._score(self._pairs(requests))

    def _pairs(self, requests: Sequence[Instance]) -> list[tuple[list[int], list[int]]]:
        """Contexts and continuations, as token ids."""
        pairs = []
        for context, continuation in (request.args[:2] for request in requests):
            if context == "":  # the harness lets end-of-text stand for it
                ids = self.words.encode(continuation)
                begins = ids[:1] == [self.eot_token_id]
                pairs.append((ids[:1], ids[1:]) if begins else ([self.eot_token_id], ids))
            else:
                pairs.append(self._encode_pair(context, continuation))
        return pairs

    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        """Replies to requests of the kind "generate_until": the samples of each."""
        asked = [self._to_write(request) for request in requests]
        found = self._answer(asked)
        return [[found[digest] for digest in one.digests] for one in asked]

    def missing(self, requests: Sequence[Instance]) -> list[EngineRequest]:
        """What the engine would be asked for requests of one kind, without what is known already."""
        kind = requests[0].request_type if requests else ""
        if kind == "generate_until":
            asked = [self._to_write(request) for request in requests]
        elif kind == "loglikelihood":
            _, asked = self._all_to_score(self._pairs(requests))
        else:
            _, asked = self._all_to_score([pair for request in requests for pair in self._windows_of(request)])
        return list(self._missing(asked).values())

    def _to_write(self, request: Instance) -> EngineRequest:
        generation, (context, settings) = self.generation, request.args[:2]
        ids, limit = tuple(self.tok_encode(context)), self._positions
        wanted = generation.max_new_tokens or settings.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS)
        # A long prompt shortens the answer down to a quarter of the positions; then it loses its beginning.
        room = max(limit - len(ids), min(wanted, limit // 4))
        kept = ids[max(0, len(ids) - (limit - min(wanted, room))) :]
        sampled = settings.get("do_sample", settings.get("temperature", 0.0) > 0)
        given = {name: settings[name] for name in ("temperature", "top_p", "top_k") if sampled and name in settings}
        ours = {name: getattr(generation, name) for name in ("temperature", "top_p", "top_k")}
        told = given | {name: value for name, value in ours.items() if value is not None}
        reasons = self.is_chat and generation.thinking
        params = SamplingParams(
            max_new_tokens=min(wanted, room),
            stop=() if reasons else stop_strings(request.args[1]),
            logprobs=0,
            num_samples=generation.num_samples,
            **told,
        )
        base = asdict(replace(params, num_samples=1)) | {"seed": generation.seed}
        digests = tuple(request_digest("text", kept, base, sample) for sample in range(params.num_samples))
        seed = int(digests[0][:15], 16)  # of its content: whatever else runs, it is the same

        def read(samples: Sequence[Sample], seconds: float) -> list[Reply]:
            return [
                Reply(
                    "text",
                    len(sample.tokens),
                    len(kept),
                    text=sample.text,
                    finished="stop" if sample.finished == "stop" else "length",
                    is_truncated=len(kept) < len(ids),
                    logprob=sum(one.logprob for one in sample.logprobs),
                    seconds=seconds,
                )
                for sample in samples
            ]

        return EngineRequest(kept, replace(params, seed=seed), digests, read)

    def _score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Reply]:
        """Score each continuation behind its context."""
        digests, asked = self._all_to_score(pairs)
        found = self._answer(asked)
        return [found[digest] for digest in digests]

    def _all_to_score(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[list[str], list[EngineRequest]]:
        """The digest of each pair's reply, and the requests.

        The last token of a continuation need not be run: what the model says before it tells. So pairs that differ in
        it alone, such as the choices A to D, are one request.
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
        return digests, [one for key, lasts in groups.items() for one in self._to_score(*key, lasts)]

    def _to_score(self, ids: Ids, start: int, is_truncated: bool, lasts: Mapping[int, str]) -> Iterator[EngineRequest]:
        """Requests that score `ids` from `start` on with each of the tokens `lasts` behind them."""
        for first in range(0, len(lasts), MAX_TOKENS):
            tokens, digests = zip(*list(lasts.items())[first : first + MAX_TOKENS], strict=True)
            params = SamplingParams(
                max_new_tokens=1,
                logprobs=1,
                logprob_tokens=tokens,
                prompt_logprobs=len(ids) > start,
                prompt_logprobs_from=start,
            )

            def read(samples: Sequence[Sample], seconds: float, tokens: Ids = tokens) -> list[Reply]:
                (sample,) = samples
                before = sample.details.prompt_logprobs if sample.details is not None else []
                logprob = sum(one.logprob for one in before)
                is_greedy = all(one.top[0][0] == token for one, token in zip(before, ids[start:], strict=True))
                (last,) = sample.logprobs
                return [
                    Reply(
                        "score",
                        len(ids) - start + 1,
                        start,
                        is_truncated=is_truncated,
                        logprob=logprob + named,
                        is_greedy=is_greedy and last.top[0][0] == token,
                        seconds=seconds,
                    )
                    for token, named in zip(tokens, last.named, strict=True)
                ]

            yield EngineRequest(ids, params, digests, read)

    def _windows_of(self, request: Instance) -> list[tuple[list[int], list[int]]]:
        return list(self._windows(self.tok_encode(request.args[0])))

    def _windows(self, ids: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
        """Contexts and continuations that score each token of a text once, with as much before it as there is room."""
        ids, size = [self.eot_token_id, *ids], self._positions
        for start in range(1, len(ids), size):
            stop = min(start + size, len(ids))
            yield ids[max(0, stop - size - 1) : start], ids[start:stop]

    @property
    def _positions(self) -> int:
        """Of prompt and answer together."""
        return min(self.engine.runner.config.max_position_embeddings, self.engine.memory.num_tokens)

    # How they are answered.

    def _answer(self, asked: Sequence[EngineRequest]) -> dict[str, Reply]:
        """Answer what is not known yet, and keep it. Collective."""
        known, missing = self.replies.known, self._missing(asked)
        share, num_shares, is_first = share_of(self.engine)
        mine = sorted(list(missing.values())[share::num_shares], key=lambda one: one.ids)
        cache_tokens = self.engine.memory.num_tokens
        num_done, num_tokens = 0, 0
        new: dict[str, Reply] = {}
        chunks = in_chunks([one.ids for one in mine], cache_tokens // 2)
        for number in range(_most(len(chunks))):  # every rank takes part in every chunk
            chunk = [mine[index] for index in chunks[number]] if number < len(chunks) else []
            self._warm([one.ids for one in chunk])
            started = time.perf_counter()

            def keep(
                index: int, samples: list[Sample], chunk: Sequence[EngineRequest] = chunk, started: float = started
            ) -> None:
                nonlocal num_done, num_tokens
                if (error := next((one.error for one in samples if one.error is not None), None)) is not None:
                    raise GlmforgeError(f"a request of the benchmark failed: {error}")
                one = chunk[index]
                replies = dict(zip(one.digests, one.read(samples, time.perf_counter() - started), strict=True))
                new.update(replies)
                if is_first:
                    self.replies.add_all(replies)
                num_done, num_tokens = num_done + 1, num_tokens + sum(len(sample.tokens) for sample in samples)
                if self._on_progress is not None:
                    self._on_progress(AnswerProgress(num_done, len(mine), num_tokens))

            self.engine.generate(
                [one.ids for one in chunk], [one.params for one in chunk], on_answer=keep, alive=self._alive
            )
        known.update(_gathered(new if is_first else {}))
        return {digest: known[digest] for one in asked for digest in one.digests}

    def _missing(self, asked: Sequence[EngineRequest]) -> dict[tuple[str, ...], EngineRequest]:
        """Those that not all replies are known to, each once."""
        known = self.replies.known
        return {one.digests: one for one in asked if not all(digest in known for digest in one.digests)}

    def _warm(self, prompts: Sequence[Ids]) -> None:
        """Put what several of these prompts begin with into the cache. Collective."""
        levels = shared_prefixes(prompts, self.engine.config.page_size) if self.engine.config.share_prefixes else []
        for depth in range(_most(len(levels))):
            self.engine.generate(levels[depth] if depth < len(levels) else [], SamplingParams(max_new_tokens=1))


def _pair(reply: Reply) -> tuple[float, bool]:
    assert reply.logprob is not None, "the engine tells them"
    return reply.logprob, bool(reply.is_greedy)


def share_of(engine: Engine) -> tuple[int, int, bool]:
    """Which share of the requests is this rank's, of how many, and whether it tells the others its replies."""
    runner = engine.runner
    return (runner.share, runner.num_shares, runner.is_first) if isinstance(runner, ShardedModel) else (0, 1, True)


def _most(number: int) -> int:
    """The largest of all ranks' numbers."""
    return max(_all_gathered(number))


def _gathered(replies: dict[str, Reply]) -> dict[str, Reply]:
    """The replies of all ranks."""
    return {digest: reply for part in _all_gathered(replies) for digest, reply in part.items()}


def _all_gathered(mine: T) -> list[T]:
    if not dist.is_initialized():
        return [mine]
    parts = [mine] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts
