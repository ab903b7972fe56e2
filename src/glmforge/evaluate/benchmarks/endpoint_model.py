"""A server with OpenAI's API as a language model of the harness.

Answers come from `/chat/completions` for conversations and `/completions` for plain prompts. Log-likelihoods come from
`/completions` with `echo` and `logprobs`, which few servers have: vLLM and SGLang do. With a tokenizer the prompts are
token ids, as the engine sees them; without one the server encodes their text.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.endpoint import Attempt, Endpoint, ask_again, url_fault
from glmforge.errors import DataError, GlmforgeError
from glmforge.evaluate.benchmarks import function_calls
from glmforge.evaluate.benchmarks.language_model import DEFAULT_MAX_NEW_TOKENS, Generation, Progress
from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest
from glmforge.evaluate.benchmarks.visible import stop_strings, visible_answer

_ATTEMPTS, _FIRST_WAIT_S = 6, 1.0


class Messages(str):
    """A conversation that a server is to render; as text it is only shown."""

    messages: tuple[Mapping[str, str], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] | None = None) -> Self:
        made = cls("\n\n".join(f"{one['role']}: {one['content']}" for one in messages))
        made.messages, made.tools = tuple(messages), tuple(tools or ())
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
    read: Callable[[Mapping[str, Any], float], Reply]


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
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        super().__init__()
        if (fault := url_fault(server.url)) is not None:
            raise GlmforgeError(f"{server.url}: {fault}")
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
        """The conversation as it is; a begun answer stays its last message."""
        return Messages.of(chat_history, tools)

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
        prompt: str | list[int]
        if isinstance(context, Messages):
            if self.words is None:
                raise GlmforgeError(
                    "scoring choices behind a conversation needs the model's tokenizer: --tokenizer DIR"
                )
            ids = self.words.apply_chat_template(
                context.messages, add_generation_prompt=True, thinking=self.generation.thinking
            )
            prompt, start = ids + self.words.encode(continuation), len(ids)
        elif self.words is not None:
            prompt = self.words.encode(context + continuation)
            start = len(self.words.encode(context))
        else:
            prompt, start = context + continuation, len(context)
        payload = {"model": self.server.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "echo": True}
        digest = request_digest("score", prompt, {"from": start})
        return _Ask(
            digest, "/completions", payload | {"logprobs": 1}, lambda reply, s: _scored(reply, prompt, start, s)
        )

    def _to_write(self, request: Instance, sample: int) -> _Ask:
        context, settings = request.args[:2]
        generation = self.generation
        given = {name: settings[name] for name in ("temperature", "top_p") if name in settings}
        ours = {name: getattr(generation, name) for name in ("temperature", "top_p", "top_k")}
        payload: dict[str, Any] = {
            "model": self.server.model,
            "max_tokens": generation.max_new_tokens or settings.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS),
            "seed": (generation.seed + sample) % 2**31,
            **given,
            **{name: value for name, value in ours.items() if value is not None},
        }
        stops = list(stop_strings(settings))
        if isinstance(context, Messages):
            payload["messages"] = list(context.messages)
            payload |= {"tools": list(context.tools)} if context.tools else {}
            payload |= {} if generation.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
            payload |= {} if generation.thinking or not stops else {"stop": stops[:4]}
            path = "/chat/completions"
        else:
            payload["prompt"] = str(context)
            payload |= {"stop": stops[:4]} if stops else {}  # as many as OpenAI's API takes; the rest is cut afterwards
            path = "/completions"
        return _Ask(request_digest("text", str(context), payload, sample), path, payload, _written)

    def _answer(self, asked: Sequence[_Ask]) -> list[Reply]:
        known = self.replies.known
        missing = {one.digest: one for one in asked if one.digest not in known}
        if missing:
            asyncio.run(self._ask_all(list(missing.values())))
        return [known[one.digest] for one in asked]

    async def _ask_all(self, asked: Sequence[_Ask]) -> None:
        places = asyncio.Semaphore(self.server.connections)
        num_done = num_tokens = 0
        started = time.perf_counter()
        servers = {
            path: Endpoint(self.server.url.rstrip("/") + path, self.server.key, self.server.timeout, 64, _check)
            for path in {one.path for one in asked}
        }

        async def answer(one: _Ask) -> None:
            nonlocal num_done, num_tokens
            async with places:
                attempt = await ask_again(
                    lambda: servers[one.path].ask(one.payload), _ATTEMPTS, _FIRST_WAIT_S, one.digest
                )
            reply = one.read(self._whole(attempt), time.perf_counter() - started)
            self.replies.add(one.digest, reply)
            num_done, num_tokens = num_done + 1, num_tokens + reply.num_tokens
            if self._on_progress is not None:
                self._on_progress(Progress(num_done, len(asked), num_tokens))

        try:
            async with asyncio.TaskGroup() as group:
                for one in asked:
                    group.create_task(answer(one))
        except* GlmforgeError as errors:
            raise errors.exceptions[0] from None
        finally:
            for server in servers.values():
                await server.__aexit__(None, None, None)

    def _whole(self, attempt: Attempt) -> Mapping[str, Any]:
        if attempt.outcome != "done" or attempt.reply is None:
            status = f" ({attempt.status})" if attempt.status else ""
            raise DataError(f"{self.server.url}: no answer{status}: {attempt.message}; what is answered so far is kept")
        return attempt.reply


def _check(reply: Any) -> None:
    reply["choices"][0]


def _written(reply: Mapping[str, Any], seconds: float) -> Reply:
    choice = reply["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    text = (f"<think>{reasoning}</think>" if reasoning else "") + str(message.get("content") or "")
    text += "".join(function_calls.in_glm_form(call) for call in message.get("tool_calls") or ())
    usage = reply.get("usage") or {}
    return Reply(
        "text",
        int(usage.get("completion_tokens") or 0),
        int(usage.get("prompt_tokens") or 0),
        text=text,
        finished="length" if choice.get("finish_reason") == "length" else "stop",
        seconds=seconds,
    )


def _scored(reply: Mapping[str, Any], prompt: str | Sequence[int], start: int, seconds: float) -> Reply:
    """What an echoed prompt says of its tokens from `start` on: of token ids a place, of text a character."""
    told = reply["choices"][0].get("logprobs") or {}
    logprobs, top = told.get("token_logprobs") or [], told.get("top_logprobs") or []
    if isinstance(prompt, str):
        offsets = [*(told.get("text_offset") or [])]
        ends = [*offsets[1:], math.inf]
        places = [
            i for i, (begin, end) in enumerate(zip(offsets, ends, strict=True)) if end > start and begin < len(prompt)
        ]
    else:
        places = list(range(start, len(prompt)))
    places = [place for place in places if place > 0]
    if not places or places[-1] >= len(logprobs) or any(logprobs[place] is None for place in places):
        raise DataError(
            "the server does not tell log-probabilities of the prompt (echo with logprobs), which choices are scored "
            "by; use vLLM or SGLang, give the weights, or take benchmarks that are written"
        )
    best = [max(top[place].values()) if place < len(top) and top[place] else -math.inf for place in places]
    own = [float(logprobs[place]) for place in places]
    return Reply(
        "score",
        len(places),
        places[0],
        logprob=sum(own),
        is_greedy=all(logprob >= most for logprob, most in zip(own, best, strict=True)),
        seconds=seconds,
    )
