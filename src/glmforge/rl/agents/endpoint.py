"""An endpoint that records: an agent's program keeps its SDK, and what it has sampled becomes samples to train on.

A program speaks OpenAI's chat completions or Anthropic's Messages under an address of its own, which only it knows and
which names its session. Prompts and replies are those of `glmforge.protocol`. A request whose messages go on behind the
last reply of a conversation is bridged to its tokens (`conversation.py`), whatever has become of its reasoning on the
way. Any other begins a conversation anew, with a rendered prompt: a further part of the same sample.

Answers are sampled as the run says: temperature, top-p, penalties, biases and the seed of a request are ignored,
because log-probabilities are to be those of what is trained. Its stop strings and `max_tokens` count. What would change
the distribution otherwise is refused: several answers to one request, schemas, budgets of thoughts. `stream` is
answered as a stream that comes at once.

It listens on this machine alone, for the time of a rollout.
"""

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Sample, Update
from glmforge.generate.params import RequestError, SamplingParams
from glmforge.protocol import chat, messages, openai
from glmforge.protocol.body import read_body, refusing
from glmforge.protocol.prompt import Talk
from glmforge.protocol.reply import Message, ReplyParser
from glmforge.protocol.request import ApiError, Ask, Context, Event, Writer, invalid
from glmforge.rl.agents.conversation import Transcript, bridged, next_turn

MAX_BODY = 16 << 20
MODEL = "policy"


class _Api(NamedTuple):
    parse: Callable[[Any, Context], Ask]
    talk: Callable[[Any], Talk]
    writer: Callable[[Ask, Context, str], Writer]
    error: Callable[[ApiError], dict[str, Any]]
    done: str = ""


_APIS: Mapping[str, _Api] = {
    "/v1/chat/completions": _Api(chat.parse, chat.talk_of, chat.ChatWriter, openai.error, "data: [DONE]\n\n"),
    "/v1/messages": _Api(messages.parse, messages.talk_of, messages.MessagesWriter, messages.error),
}


@dataclass(frozen=True)
class _Context:
    """See `protocol.request.Context`: any name of a model is ours."""

    tokenizer: Tokenizer
    model_names: tuple[str, ...]
    max_positions: int
    default_max_tokens: int
    created: int = 0


@dataclass
class _Conversation:
    """A part of a session; `said`: its messages, None while a reply is awaited."""

    transcript: Transcript
    tools: list[dict[str, Any]]
    said: list[dict[str, Any]] | None = None


@dataclass
class Session:
    """What one program does.

    Attributes:
        is_malformed: whether a reply had a call that was none.
    """

    params_of: Callable[[int], SamplingParams]
    max_requests: int
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    is_malformed: bool = False
    num_requests: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    conversations: list[_Conversation] = field(default_factory=list)

    @property
    def transcripts(self) -> list[Transcript]:
        return [one.transcript for one in self.conversations if one.transcript.num_new]

    def continued(self, talk: Talk) -> tuple[_Conversation, list[dict[str, Any]]] | None:
        """The conversation that a request goes on with, and its new messages. It is taken."""
        tools, given = [tool.written for tool in talk.tools], list(talk.messages)
        for one in reversed(self.conversations):
            if one.said is None or one.tools != tools or len(one.said) >= len(given):
                continue
            new = given[len(one.said) :]
            if any(m["role"] == "assistant" for m in new) or not all(map(_is_same, one.said, given)):
                continue
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
        self._sessions: dict[str, Session] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
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
        """A session, for as long as its program runs; `params_of` gives those of its request with a number."""
        session = Session(params_of, max_requests)
        self._sessions[session.name] = session
        try:
            yield session
        finally:
            del self._sessions[session.name]

    def answer(self, path: str, data: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer to a request."""
        name, _, route = path.removeprefix("/").partition("/")
        api = _APIS.get(f"/{route.partition('?')[0]}", _APIS["/v1/chat/completions"])
        try:
            session = self._sessions.get(name)
            if session is None or f"/{route.partition('?')[0]}" not in _APIS:
                raise ApiError(404, "not_found", f"no session has this address; ask {' or '.join(_APIS)} of your own")
            ask, events, writer = self._reply(session, api, read_body(data))
            if not ask.stream:
                return 200, "application/json", json.dumps(writer.whole()).encode()
            return 200, "text/event-stream", ("".join(map(_sent, events)) + api.done).encode()
        except (RequestError, GlmforgeError) as error:
            refusal = error if isinstance(error, ApiError) else ApiError(400, "invalid_request", str(error))
            return refusal.status, "application/json", json.dumps(api.error(refusal)).encode()

    def _reply(self, session: Session, api: _Api, body: dict[str, Any]) -> tuple[Ask, list[Event], Writer]:
        with session.lock:
            number = session.num_requests
            session.num_requests += 1
        if number >= session.max_requests:
            raise invalid(None, f"a conversation has at most {session.max_requests} replies (rl.agent.max_turns)")
        params = session.params_of(number)
        name = str(body.get("model", MODEL))
        context = _Context(self._tokenizer, (name,), self._max_positions, params.max_new_tokens)
        ask, talk = api.parse(body, context), api.talk(body)
        if ask.params.num_samples > 1 or ask.params.json_schema is not None or ask.reasoning_budget is not None:
            raise invalid(None, "n, schemas, budgets of thoughts, and stop while thinking, are not supported here")
        with session.lock:
            found = session.continued(talk)
        if found is None:
            conversation = _Conversation(Transcript(ask.prompt), [tool.written for tool in talk.tools])
            turn: list[int] = []
        else:
            conversation, turn = found[0], self._turn(found[0], found[1], talk, ask.prompt)
        prompt = [*conversation.transcript.ids, *turn]
        room = min(params.max_new_tokens, ask.params.max_new_tokens, self._max_positions - len(prompt))
        if room < 1:
            raise invalid(None, f"the prompt has {len(prompt):,} tokens", "context_length_exceeded")
        stop_ids = (*params.stop_ids, *ask.params.stop_ids)
        sample = self._ask(prompt, replace(params, max_new_tokens=room, stop=ask.params.stop, stop_ids=stop_ids))
        conversation.transcript.observe(turn)
        conversation.transcript.reply(sample)
        with session.lock:
            conversation.said = [*talk.messages, self._message(session, ask, sample)]
            if found is None:
                session.conversations.append(conversation)
        writer = api.writer(ask, context, f"answer-{secrets.token_hex(8)}")
        events = writer.begin()
        for update in _updates(sample):
            events += writer.update(update)
        return ask, events + writer.end(), writer

    def _turn(
        self, conversation: _Conversation, new: list[dict[str, Any]], talk: Talk, prompt: Sequence[int]
    ) -> list[int]:
        """The tokens of new messages, and what the rendered prompt has behind its last `<|assistant|>`."""
        assistant = self._tokenizer.special_id("<|assistant|>")
        turn = next_turn(self._tokenizer, new, thinking=talk.thinking.enabled)
        end = len(prompt) - list(reversed(prompt)).index(assistant)
        turn = turn[: len(turn) - list(reversed(turn)).index(assistant)]
        return [*bridged(conversation.transcript.ids, turn), *prompt[end:]]

    def _message(self, session: Session, ask: Ask, sample: Sample) -> dict[str, Any]:
        """A reply as a client hands it back."""
        assert ask.reply is not None, "both APIs have one"
        parser = ReplyParser(self._tokenizer, ask.reply)
        message = Message([*parser.add(sample.tokens), *parser.finish()])
        begun = [*ask.reply.prefix, *sample.tokens].count(self._tokenizer.special_id("<tool_call>"))
        session.is_malformed |= bool(ask.reply.tools) and begun > parser.num_calls
        calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments, _ in message.calls]
        said = {"role": "assistant", "content": message.content, "reasoning_content": message.reasoning}
        return said | ({"tool_calls": calls} if calls else {})


def _is_same(known: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """But for space, and for a reasoning that was left out."""
    reasoning = given.get("reasoning_content") or known.get("reasoning_content")
    return (
        known["role"] == given["role"]
        and _words(known.get("content")) == _words(given.get("content"))
        and _words(known.get("reasoning_content")) == _words(reasoning)
        and list(map(_call, known.get("tool_calls", ()))) == list(map(_call, given.get("tool_calls", ())))
    )


def _words(text: str | None) -> list[str]:
    return (text or "").split()


def _call(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with refusing("messages"):
            arguments = read_body(arguments.encode(errors="replace") or b"{}")
    return function["name"], arguments or {}


def _updates(sample: Sample) -> Iterator[Update]:
    """The reply as an engine tells of it."""
    last = len(sample.tokens) - 1
    for place, token in enumerate(sample.tokens):
        ends = {"finished": sample.finished, "stop": sample.stop} if place == last else {"finished": None}
        yield Update(0, 0, token, logprob=sample.logprobs[place], num_cached=sample.num_cached, **ends)


def _sent(event: Event) -> str:
    name = "" if event.name is None else f"event: {event.name}\n"
    return f"{name}data: {json.dumps(event.data)}\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def _handler(endpoint: RecordingEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60.0

        def do_POST(self) -> None:
            size = self.headers.get("content-length", "")
            if not size.isdecimal() or int(size[:20]) > MAX_BODY:
                self.close_connection = True
                self.send_error(413)
                return
            status, kind, content = endpoint.answer(self.path, self.rfile.read(int(size)))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    return Handler
