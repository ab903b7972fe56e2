"""An endpoint that records: an agent's program keeps its SDK, and what it has sampled becomes samples to train on.

A program speaks OpenAI's chat completions or Anthropic's Messages under an address that only it knows, its session.
Prompts and replies are those of `glmforge.protocol`. A request whose messages go on behind the last reply of a
conversation is bridged to its tokens (`conversation.py`), with or without the reasoning. Any other begins a
conversation anew with a rendered prompt: a further part of the same sample.

Answers are sampled as the run says: temperature, top-p, penalties, biases and seed of a request are ignored, because
log-probabilities are to be those that are trained. Its stop strings and `max_tokens` count. Refused is what would need
another distribution: several answers to one request, schemas, budgets of thoughts. A stream comes all at once.

It listens on this machine alone, for the time of a rollout.
"""

import itertools
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Sample, Update
from glmforge.generate.params import SamplingParams
from glmforge.protocol import chat, messages, openai, reply
from glmforge.protocol.body import read_body
from glmforge.protocol.prompt import Talk
from glmforge.protocol.request import ApiError, Ask, Context, Writer, invalid
from glmforge.rl.agents.conversation import Message, Transcript, bridged, next_turn

MAX_BODY = 16 << 20


class _Api(NamedTuple):
    parse: Callable[[Any, Context], Ask]
    writer: Callable[[Ask, Context, str], Writer]
    error: Callable[[ApiError], dict[str, Any]]
    done: str


_CHAT = _Api(chat.parse, chat.ChatWriter, openai.error, "data: [DONE]\n\n")
_MESSAGES = _Api(messages.parse, messages.MessagesWriter, messages.error, "")
_APIS = {"v1/chat/completions": _CHAT, "v1/messages": _MESSAGES}


@dataclass
class Session:
    """What one program does.

    Attributes:
        params_of: how the reply to its request with a number is sampled.
        is_malformed: whether a reply had a call that was none.
    """

    params_of: Callable[[int], SamplingParams]
    max_requests: int
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    is_malformed: bool = False
    numbers: Iterator[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)
    transcripts: list[Transcript] = field(default_factory=list)

    def continued(self, talk: Talk, tools: Sequence[Message]) -> tuple[Transcript, Sequence[Message]] | None:
        """The conversation that a request goes on with, which is then taken, and its new messages."""
        for one in reversed(self.transcripts):
            known, new = one.said or (), talk.messages[len(one.said or ()) :]
            is_next = known and new and one.tools == tools and all(m["role"] != "assistant" for m in new)
            if is_next and all(map(_is_same, known, talk.messages)):
                one.said = None
                return one, new
        return None


class RecordingEndpoint:
    """The server; a context.

    Args:
        ask: gives the reply to token ids; called in several threads.
        max_positions: of prompt and reply.
    """

    def __init__(
        self, tokenizer: Tokenizer, ask: Callable[[Sequence[int], SamplingParams], Sample], max_positions: int
    ) -> None:
        self._tokenizer, self._ask, self._max_positions = tokenizer, ask, max_positions
        self._assistant = tokenizer.special_id("<|assistant|>")
        self._sessions: dict[str, Session] = {}
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"endpoint": self}))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def variables(self, session: Session) -> dict[str, str]:
        """What tells the SDKs of a program where its session is."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}/{session.name}"
        keys = {"OPENAI_API_KEY": session.name, "ANTHROPIC_API_KEY": session.name}
        return {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url, "NO_PROXY": "127.0.0.1"} | keys

    @contextmanager
    def session(self, params_of: Callable[[int], SamplingParams], max_requests: int) -> Iterator[Session]:
        """A session, for as long as its program runs."""
        session = Session(params_of, max_requests)
        self._sessions[session.name] = session
        try:
            yield session
        finally:
            del self._sessions[session.name]

    def answer(self, path: str, data: bytes) -> tuple[int, str, str]:
        """Status, content type and body of the answer to a request."""
        name, _, route = path.removeprefix("/").partition("?")[0].partition("/")
        api, session = _APIS.get(route, _CHAT), self._sessions.get(name)
        try:
            if session is None or route not in _APIS:
                raise ApiError(404, "not_found", f"no session has this address, or it is not one of {', '.join(_APIS)}")
            return self._answer(session, api, read_body(data))
        except GlmforgeError as error:
            refusal = error if isinstance(error, ApiError) else ApiError(400, "invalid_request", str(error))
            return refusal.status, "application/json", json.dumps(api.error(refusal))

    def _answer(self, session: Session, api: _Api, body: dict[str, Any]) -> tuple[int, str, str]:
        number = next(session.numbers)
        if number >= session.max_requests:
            raise invalid(None, f"a program gets at most {session.max_requests} replies (rl.agent.max_turns)")
        params, names = session.params_of(number), (str(body.get("model", "policy")),)
        facts = {"model_names": names, "default_max_tokens": params.max_new_tokens, "created": 0}
        context: Any = SimpleNamespace(tokenizer=self._tokenizer, max_positions=self._max_positions, **facts)
        ask = api.parse(body, context)
        if ask.params.num_samples > 1 or ask.params.json_schema is not None or ask.reasoning_budget is not None:
            raise invalid(None, "n, schemas, budgets of thoughts, and stop while thinking, are not supported here")
        sample = self._sample(session, ask, params)
        writer = api.writer(ask, context, f"answer-{secrets.token_hex(8)}")
        events = writer.begin()
        for place, (token, logprob) in enumerate(zip(sample.tokens, sample.logprobs, strict=True)):
            finished = sample.finished if place == len(sample.tokens) - 1 else None
            events += writer.update(Update(0, 0, token, finished, logprob=logprob, stop=finished and sample.stop))
        events += writer.end()
        if not ask.stream:
            return 200, "application/json", json.dumps(writer.whole())
        sent = [(f"event: {one.name}\n" if one.name else "") + f"data: {json.dumps(one.data)}\n\n" for one in events]
        return 200, "text/event-stream", "".join(sent) + api.done

    def _sample(self, session: Session, ask: Ask, params: SamplingParams) -> Sample:
        """The reply to a request, recorded."""
        talk: Talk = ask.extra["talk"]
        tools, turn = [tool.written for tool in talk.tools], list[int]()
        with session.lock:
            found = session.continued(talk, tools)
        if found is None:
            transcript = Transcript(ask.prompt)
            transcript.tools = tools
        else:  # the new messages, and what the rendered prompt has behind its last `<|assistant|>`
            transcript, turn = found[0], next_turn(self._tokenizer, found[1], thinking=talk.thinking.enabled)
            turn = bridged(transcript.ids, turn[: self._end(turn)]) + list(ask.prompt)[self._end(ask.prompt) :]
        prompt = [*transcript.ids, *turn]
        room = min(params.max_new_tokens, ask.params.max_new_tokens, self._max_positions - len(prompt))
        if room < 1:
            raise invalid(None, f"the prompt has {len(prompt):,} tokens; shorten it", "context_length_exceeded")
        stop_ids = (*params.stop_ids, *ask.params.stop_ids)
        sample = self._ask(prompt, replace(params, max_new_tokens=room, stop=ask.params.stop, stop_ids=stop_ids))
        transcript.observe(turn)
        transcript.reply(sample)
        with session.lock:
            transcript.said = [*talk.messages, self._reply(session, ask, sample)]
            if found is None:
                session.transcripts.append(transcript)
        return sample

    def _end(self, ids: Sequence[int]) -> int:
        return len(ids) - ids[::-1].index(self._assistant)

    def _reply(self, session: Session, ask: Ask, sample: Sample) -> Message:
        """A reply as a client hands it back."""
        assert ask.reply is not None, "both APIs have one"
        parser = reply.ReplyParser(self._tokenizer, ask.reply)
        message = reply.Message([*parser.add(sample.tokens), *parser.finish()])
        begun = [*ask.reply.prefix, *sample.tokens].count(self._tokenizer.special_id("<tool_call>"))
        session.is_malformed |= bool(ask.reply.tools) and begun > parser.num_calls
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments, _ in message.calls]
        said = {"role": "assistant", "content": message.content, "reasoning_content": message.reasoning}
        return said | {"tool_calls": calls}


def _is_same(known: Message, given: Message) -> bool:
    """But for space, and for a reasoning that was left out."""
    reasoning = _words(given.get("reasoning_content"))
    return _facts(known) == _facts(given) and reasoning in ([], _words(known.get("reasoning_content")))


def _facts(message: Message) -> object:
    calls = [(one["function"]["name"], one["function"].get("arguments")) for one in message.get("tool_calls", ())]
    said = [
        (name, read_body(some.encode(errors="replace") or b"{}") if isinstance(some, str) else some or {})
        for name, some in calls
    ]
    return message["role"], _words(message.get("content")), said


def _words(text: str | None) -> list[str]:
    return (text or "").split()


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 1024


class _Handler(BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", 60.0
    disable_nagle_algorithm = True  # a reply is sent in two parts, and the second would wait for 40 ms
    endpoint: RecordingEndpoint

    def do_POST(self) -> None:
        size = self.headers.get("content-length", "")
        if not size.isdecimal() or int(size[:20]) > MAX_BODY:
            self.close_connection = True
            self.send_error(413)
            return
        status, kind, content = self.endpoint.answer(self.path, self.rfile.read(int(size)))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""
