"""A server with OpenAI's API as a language model of the harness.

Answers come from `/chat/completions` for conversations and `/completions` for plain prompts. Log-likelihoods come from
`/completions` with `echo` and `logprobs`, which few servers have: vLLM and SGLang do. With a tokenizer the prompts are
token ids, as the engine sees them; without one the server encodes their text.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from pydantic import BaseModel, Field, NonNegativeInt

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.endpoint import Attempt, Endpoint, ask_again, url_fault
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import function_calls
from glmforge.evaluate.benchmarks.language_model import DEFAULT_MAX_NEW_TOKENS, AnswerProgress, Generation
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest
from glmforge.evaluate.benchmarks.visible import stop_strings, visible_answer

_ATTEMPTS, _FIRST_WAIT_S = 6, 1.0


class Messages(str):
    """A conversation that a server is to render; as text it is only shown. The last message may begin the answer."""

    messages: tuple[Mapping[str, str], ...]
    begins_answer: bool
    tools: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, str]],
        *,
        begins_answer: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Self:
        made = cls("\n\n".join(f"{one['role']}: {one['content']}" for one in messages))
        made.messages, made.begins_answer = tuple(messages), begins_answer and bool(messages)
        made.tools = tuple(tools or ())
        return made


@dataclass(frozen=True)
class Server:
    """Where to ask.

    Attributes:
        url: up to `/v1`.
        model: the name that the server knows it by.
        key: "" for none.
        timeout: seconds for a reply.
        connections: requests at the same time.
    """

    url: str
    model: str
    key: str = ""
    timeout: float = 600.0
    connections: int = 16


@dataclass(frozen=True)
class _Ask:
    """A request: where it goes, what is sent, and what its answer becomes."""

    digest: str
    path: str
    payload: Mapping[str, Any]
    read: Callable[["_Completion", float], Reply]


_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Logprobs(BaseModel):
    token_logprobs: list[_Finite | None] = []
    top_logprobs: list[dict[str, _Finite] | None] | None = None
    text_offset: list[NonNegativeInt] | None = None


class _Message(BaseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _ServerChoice(BaseModel):
    text: str | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    completion_tokens: NonNegativeInt = 0
    prompt_tokens: NonNegativeInt = 0


class _Completion(BaseModel):
    """What is read of a reply; a server may say more."""

    choices: Annotated[list[_ServerChoice], Field(min_length=1)]
    usage: _Usage | None = None


class EndpointModel(LM):
    """See above.

    Args:
        tokenizer: the model's; conversations of scored requests need it.
    """

    def __init__(
        self,
        server: Server,
        replies: ReplyStore,
        generation: Generation,
        *,
        tokenizer: Tokenizer | None = None,
        on_progress: Callable[[AnswerProgress], None] | None = None,
    ) -> None:
        super().__init__()
        if (fault := url_fault(server.url)) is not None:
            raise GlmforgeError(f"the server to evaluate: {fault}")
        self.server, self.replies, self.generation, self.words = server, replies, generation, tokenizer
        self._on_progress = on_progress

    @property
    def tokenizer_name(self) -> str:
        return "" if self.words is None else self.words.fingerprint

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Messages:
        """The conversation as it is; without a generation prompt its last message is the beginning of the answer."""
        return Messages.of(chat_history, begins_answer=not add_generation_prompt, tools=tools)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """As the engine's; see `language_model.EngineLM`."""
        return [(reply.logprob or 0.0, bool(reply.is_greedy)) for reply in self.score(requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Of whole texts, the first token aside, which nothing precedes."""
        return [reply.logprob or 0.0 for reply in self._answer([self._to_score("", *one.args) for one in requests])]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The first answer to each request."""
        written = zip(requests, self.write(requests), strict=True)
        return [visible_answer(samples[0].text, stop_strings(request.args[1])) for request, samples in written]

    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        """Replies to requests of the kind "loglikelihood"."""
        return self._answer([self._to_score(*request.args[:2]) for request in requests])

    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        """The samples of each request of the kind "generate_until"."""
        number = self.generation.num_samples
        asked = [self._to_write(request, sample) for request in requests for sample in range(number)]
        replies = self._answer(asked)
        return [replies[start : start + number] for start in range(0, len(replies), number)]

    def _to_score(self, context: str, continuation: str) -> _Ask:
        prompt, start = self._prompt_to_score(context, continuation)
        payload = {"model": self.server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True}
        digest = request_digest("score", prompt, {"from": start})
        return _Ask(
            digest, "/completions", payload | {"logprobs": 1}, lambda reply, s: _scored(reply, prompt, start, s)
        )

    def _prompt_to_score(self, context: str, continuation: str) -> tuple[str | list[int], int]:
        """Context and continuation together, and where the continuation begins: a token, or of text a character."""
        words = self.words
        if isinstance(context, Messages):
            if words is None:
                raise GlmforgeError("scoring choices after a conversation needs the model's tokenizer: --tokenizer DIR")
            ids = self._rendered(words, context)
            return ids + words.encode(continuation), len(ids)
        if words is None:
            return context + continuation, len(context)
        if context == "":  # end-of-text stands for it, as the harness has it
            return [words.end_of_text_id, *words.encode(continuation)], 1
        stripped = context.rstrip()  # spaces belong to the token behind them, as the harness has it
        return words.encode(context + continuation), len(words.encode(stripped))

    def _rendered(self, words: Tokenizer, context: Messages) -> list[int]:
        history = list(context.messages)
        begun = history.pop()["content"] if context.begins_answer else ""
        ids = words.apply_chat_template(history, add_generation_prompt=True, thinking=self.generation.thinking)
        return ids + words.encode(begun)

    def _to_write(self, request: Instance, sample: int) -> _Ask:
        context, settings = request.args[:2]
        generation, stops = self.generation, list(stop_strings(settings))
        payload: dict[str, Any] = {
            "model": self.server.model,
            "max_tokens": generation.max_new_tokens or settings.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS),
            "seed": (generation.seed + sample) % 2**31,
            **_sampling(generation, settings),
        }
        if isinstance(context, Messages):
            payload["messages"] = list(context.messages)
            payload |= {"add_generation_prompt": False, "continue_final_message": True} if context.begins_answer else {}
            payload |= {"tools": list(context.tools)} if context.tools else {}
            payload |= {} if generation.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
            stops = [] if generation.thinking else stops  # they are not to end the reasoning
            path = "/chat/completions"
        else:
            payload["prompt"] = str(context) if self.words is None else self.words.encode(str(context))
            path = "/completions"
        payload |= {"stop": stops[:4]} if stops else {}  # as many as OpenAI's API takes; the rest is cut afterwards
        return _Ask(request_digest("text", str(context), payload, sample), path, payload, _written)

    def _answer(self, asked: Sequence[_Ask]) -> list[Reply]:
        known = self.replies.known
        missing = {one.digest: one for one in asked if one.digest not in known}
        if missing:
            asyncio.run(self._ask_all(list(missing.values())))
        return [known[one.digest] for one in asked]

    async def _ask_all(self, asked: Sequence[_Ask]) -> None:
        """Ask at the same time what may be, and keep each reply. The first error ends it."""
        server = self.server
        places = asyncio.Semaphore(server.connections)
        num_done = num_tokens = 0
        started = time.perf_counter()
        async with AsyncExitStack() as stack:
            endpoints = {
                path: await stack.enter_async_context(
                    Endpoint(
                        server.url.rstrip("/") + path,
                        server.key,
                        server.timeout,
                        server.connections,
                        _Completion.model_validate,
                    )
                )
                for path in {one.path for one in asked}
            }

            async def answer(one: _Ask) -> None:
                nonlocal num_done, num_tokens
                async with places:
                    attempt = await ask_again(
                        lambda: endpoints[one.path].ask(one.payload), _ATTEMPTS, _FIRST_WAIT_S, one.digest
                    )
                reply = one.read(self._whole(attempt), time.perf_counter() - started)
                self.replies.add(one.digest, reply)
                num_done, num_tokens = num_done + 1, num_tokens + reply.num_tokens
                if self._on_progress is not None:
                    self._on_progress(AnswerProgress(num_done, len(asked), num_tokens))

            failed: BaseException | None = None
            try:
                async with asyncio.TaskGroup() as group:
                    for one in asked:
                        group.create_task(answer(one))
            except ExceptionGroup as errors:  # the others were cancelled
                failed = errors.exceptions[0]
            if failed is not None:
                raise failed

    def _whole(self, attempt: Attempt) -> _Completion:
        if attempt.outcome != "done" or attempt.reply is None:
            status = f" ({attempt.status})" if attempt.status else ""
            raise DataError(
                f"{self.server.url}: no answer{status}: {attempt.message or 'the server gives no reason'}; check the "
                "server, then run again to resume"
            )
        return _Completion.model_validate(attempt.reply)


def _sampling(generation: Generation, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine would sample with; greedy where nothing is said, whatever the server's default is."""
    sampled = settings.get("do_sample", settings.get("temperature", 0.0) > 0)
    names = ("temperature", "top_p", "top_k")
    given = {name: settings[name] for name in names if sampled and name in settings}
    ours = {name: value for name in names if (value := getattr(generation, name)) is not None}
    return {"temperature": 0.0} | given | ours


def _written(reply: _Completion, seconds: float) -> Reply:
    choice, usage = reply.choices[0], reply.usage or _Usage()
    message = choice.message or _Message(content=choice.text)
    is_cut = choice.finish_reason == "length"
    text, reasoning = message.content or "", message.reasoning_content or message.reasoning or ""
    text += "".join(function_calls.in_glm_form(call) for call in message.tool_calls or ())
    if reasoning:  # what was cut while it reasoned has no end of it
        text = f"<think>{reasoning}" if is_cut and not text else f"<think>{reasoning}</think>{text}"
    return Reply(
        "text",
        usage.completion_tokens,
        usage.prompt_tokens,
        text=text,
        finished="length" if is_cut else "stop",
        seconds=seconds,
    )


def _scored(reply: _Completion, prompt: str | Sequence[int], start: int, seconds: float) -> Reply:
    """What an echoed prompt says of its tokens from `start` on: of token ids a place, of text a character."""
    told = reply.choices[0].logprobs or _Logprobs()
    logprobs, top = told.token_logprobs, told.top_logprobs or []
    if isinstance(prompt, str):
        offsets = [*(told.text_offset or []), len(prompt) + 1]
        spans = enumerate(pairwise(offsets))
        places = [place for place, (begin, end) in spans if end > start and begin < len(prompt)]
    else:
        places = list(range(start, len(prompt)))
    own = [logprobs[place] if place < len(logprobs) else None for place in places if place > 0]
    places = [place for place in places if place > 0]
    known = [logprob for logprob in own if logprob is not None]
    if not known or len(known) < len(own):
        raise DataError(
            "the server does not return log-probabilities of the prompt (echo with logprobs), which multiple choice "
            "needs: use vLLM or SGLang, evaluate the weights, or choose benchmarks with generated answers"
        )
    best = [
        max((top[place] or {}).values(), default=own) if place < len(top) else own
        for place, own in zip(places, known, strict=True)
    ]
    return Reply(
        "score",
        len(places),
        places[0],
        logprob=sum(known),
        is_greedy=bool(top) and all(logprob >= most for logprob, most in zip(known, best, strict=True)),
        seconds=seconds,
    )
