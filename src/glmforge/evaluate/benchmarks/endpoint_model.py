"""A server with OpenAI's API as a language model of the harness.

Answers come from `/chat/completions` for conversations and `/completions` for plain prompts. Log-likelihoods come from
`/completions` with `echo` and `logprobs`, which few servers have: vLLM and SGLang do. With a tokenizer the prompts are
token ids, as for the engine; without one the server encodes their text.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Annotated, Any

from lm_eval.api.instance import Instance
from pydantic import BaseModel, Field, NonNegativeInt

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.endpoint import Endpoint, ask_again, url_fault
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import function_calls
from glmforge.evaluate.benchmarks.model import (
    Generation,
    Model,
    Progress,
    PromptText,
    encode_pair,
    rendered,
    stop_strings,
)
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest

_ATTEMPTS, _FIRST_WAIT_S = 6, 1.0


class Messages(str):
    """A conversation that a server is to render; as text it is only shown. The last message may begin the answer."""

    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...]
    begins_answer: bool


@dataclass(frozen=True)
class Server:
    """A server: its URL up to `/v1`, its name for the model, a key ("" for none), seconds to wait for a reply, and the
    number of requests at the same time."""

    url: str
    model: str
    key: str = ""
    timeout: float = 600.0
    connections: int = 16


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
    """The fields of a server's reply that are read; others are ignored."""

    choices: Annotated[list[_ServerChoice], Field(min_length=1)]
    usage: _Usage | None = None


@dataclass(frozen=True)
class _Ask:
    """A request: what is sent, and how the server's reply is read, with the seconds that it took."""

    digest: str
    payload: Mapping[str, Any]
    read: Callable[[_Completion, float], Reply]


class EndpointModel(Model):
    """See above.

    Args:
        tokenizer: the model's; scoring choices after a conversation needs it.
    """

    def __init__(
        self,
        server: Server,
        replies: ReplyStore,
        generation: Generation,
        *,
        tokenizer: Tokenizer | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        super().__init__(replies, generation, tokenizer, on_progress)
        if (fault := url_fault(server.url)) is not None:
            raise GlmforgeError(f"the server to evaluate: {fault}")
        self.server = server

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Messages:
        """The conversation as it is; without a generation prompt its last message is the beginning of the answer."""
        made = Messages("\n\n".join(f"{one['role']}: {one['content']}" for one in chat_history))
        made.messages, made.tools = tuple(chat_history), tuple(tools or ())
        made.begins_answer = bool(chat_history) and not add_generation_prompt
        return made

    def score(self, requests: Sequence[Instance]) -> list[Reply]:
        # A whole text is scored after nothing: without a tokenizer its first token has no log-probability.
        return self._answer("/completions", [self._to_score(*("", *request.args)[-2:]) for request in requests])

    def write(self, requests: Sequence[Instance]) -> list[list[Reply]]:
        is_chat = bool(requests) and isinstance(requests[0].args[0], Messages)
        number = self.generation.num_samples
        asked = [self._to_write(request, sample) for request in requests for sample in range(number)]
        replies = self._answer("/chat/completions" if is_chat else "/completions", asked)
        return [replies[start : start + number] for start in range(0, len(replies), number)]

    def _to_score(self, context: str, continuation: str) -> _Ask:
        prompt: str | list[int] = context + continuation
        start, words, thinking = len(context), self.tokenizer, self.generation.thinking
        if words is not None:
            if isinstance(context, Messages):
                ids = rendered(words, context.messages, begins_answer=context.begins_answer, thinking=thinking)
                context = PromptText.of(context, ids)
            before, after = encode_pair(words, context, continuation)
            prompt, start = before + after, len(before)
        elif isinstance(context, Messages):
            raise GlmforgeError("scoring choices after a conversation needs the model's tokenizer: --tokenizer DIR")
        payload = {"model": self.server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True}
        digest = request_digest("score", prompt, {"from": start})
        return _Ask(digest, payload | {"logprobs": 1}, lambda reply, s: _scored(reply, prompt, start, s))

    def _to_write(self, request: Instance, sample: int) -> _Ask:
        (context, settings), generation = request.args[:2], self.generation
        stops = list(stop_strings(settings))
        payload: dict[str, Any] = {
            "model": self.server.model,
            "max_tokens": generation.longest(settings),
            "seed": (generation.seed + sample) % 2**31,
            **generation.sampling(settings),  # a temperature always: servers have defaults of their own
        }
        if isinstance(context, Messages):
            payload["messages"] = list(context.messages)
            payload |= {"add_generation_prompt": False, "continue_final_message": True} if context.begins_answer else {}
            payload |= {"tools": list(context.tools)} if context.tools else {}
            payload |= {} if generation.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
            stops = [] if generation.thinking else stops  # they are not to end the reasoning
        else:
            payload["prompt"] = str(context) if self.tokenizer is None else self.tokenizer.encode(str(context))
        payload |= {"stop": stops[:4]} if stops else {}  # as many as OpenAI's API takes; the rest is cut afterwards
        return _Ask(request_digest("text", str(context), payload, sample), payload, _written)

    def _answer(self, path: str, asked: Sequence[_Ask]) -> list[Reply]:
        known = self.replies.known
        missing = {one.digest: one for one in asked if one.digest not in known}
        if missing:
            asyncio.run(self._ask_all(path, list(missing.values())))
        return [known[one.digest] for one in asked]

    async def _ask_all(self, path: str, asked: Sequence[_Ask]) -> None:
        """Ask at the same time what may be, and keep each reply. The first error ends it."""
        server, started, num_done = self.server, time.perf_counter(), count(1)
        places = asyncio.Semaphore(server.connections)

        async def answer(one: _Ask) -> None:
            async with places:
                attempt = await ask_again(lambda: endpoint.ask(one.payload), _ATTEMPTS, _FIRST_WAIT_S, one.digest)
            if attempt.outcome != "done":
                status = f" ({attempt.status})" if attempt.status else ""
                raise DataError(
                    f"{server.url}: no answer{status}: {attempt.message or 'the server gives no reason'}; check the "
                    "server, then run again to resume"
                )
            reply = one.read(_Completion.model_validate(attempt.reply), time.perf_counter() - started)
            self.replies.add({one.digest: reply})
            self.on_progress(next(num_done), len(asked))

        url = server.url.rstrip("/") + path
        async with Endpoint(
            url, server.key, server.timeout, server.connections, _Completion.model_validate
        ) as endpoint:
            try:
                async with asyncio.TaskGroup() as group:
                    for one in asked:
                        group.create_task(answer(one))
            except ExceptionGroup as errors:  # the others were cancelled
                raise errors.exceptions[0] from None


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
    """The log-probabilities of an echoed prompt from `start` on: the place of a token id, or of a character."""
    found = reply.choices[0].logprobs or _Logprobs()
    places = list(range(start, len(prompt)))
    if isinstance(prompt, str):
        spans = enumerate(pairwise([*(found.text_offset or []), len(prompt) + 1]))
        places = [place for place, (begin, end) in spans if end > start and begin < len(prompt)]
    places = [place for place in places if place > 0]  # nothing precedes the first token
    logprobs, top = dict(enumerate(found.token_logprobs)), dict(enumerate(found.top_logprobs or []))
    known = [logprob for place in places if (logprob := logprobs.get(place)) is not None]
    if not known or len(known) < len(places):
        raise DataError(
            "the server does not return log-probabilities of the prompt (echo with logprobs), which multiple choice "
            "needs: use vLLM or SGLang, evaluate the weights, or choose benchmarks with generated answers"
        )
    best = [max((top.get(place) or {}).values(), default=own) for place, own in zip(places, known, strict=True)]
    is_greedy = bool(top) and all(own >= most for own, most in zip(known, best, strict=True))
    return Reply("score", len(places), places[0], logprob=sum(known), is_greedy=is_greedy, seconds=seconds)
