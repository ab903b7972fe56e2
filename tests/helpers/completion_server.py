"""A small HTTP server with OpenAI's completions, whose model is arithmetic, and which fails as it is told."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Payload = dict[str, Any]
Raw = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""


def logprob_of(token: str | int) -> float:
    """Of a character, or of a token id, whatever precedes it."""
    return -(ord(token) if isinstance(token, str) else token + 1) / 1000


def echoed(payload: Payload) -> Payload:
    """A completion with the log-probabilities of its prompt. The likeliest token is always one of probability 1."""
    prompt = payload["prompt"]
    tokens = [*prompt, "!"] if isinstance(prompt, str) else [*prompt, 0]
    logprobs: Payload = {
        "token_logprobs": [None, *(logprob_of(token) for token in tokens[1:])],
        "top_logprobs": [None, *({str(token): logprob_of(token), "other": 0.0} for token in tokens[1:])],
        "text_offset": list(range(len(tokens))),
    }
    return {"choices": [{"text": "!", "finish_reason": "length", "logprobs": logprobs}]}


def written(payload: Payload) -> Payload:
    """An answer, with its reasoning apart where the request is a conversation."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    if "messages" in payload:
        message = {"content": "The answer is 4.", "reasoning_content": "Question: 2 + 2"}
        return {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    return {"choices": [{"text": " 4\n\nQuestion: more", "finish_reason": "length"}], "usage": usage}


@dataclass
class CompletionServer:
    """What it was asked, and how it answers.

    Attributes:
        url: up to `/v1`.
        asked: path, payload and headers of each request.
        first: answers to the first requests, before `answer` gives any.
    """

    url: str
    answer: Callable[[Payload], Payload] = lambda payload: echoed(payload) if payload.get("echo") else written(payload)
    first: list[Raw] = field(default_factory=list)
    key: str = ""
    asked: list[tuple[str, Payload, dict[str, str]]] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)

    def take(self, path: str, payload: Payload, headers: dict[str, str]) -> Raw:
        with self.lock:
            self.asked.append((path, payload, headers))
            if self.first:
                return self.first.pop(0)
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return 401, f"no such key: {headers.get('authorization')}".encode(), {}
        return 200, json.dumps(self.answer(payload)).encode(), {}


@contextmanager
def completion_server() -> Iterator[CompletionServer]:
    """One on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body, more = state.take(self.path, payload, headers)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = CompletionServer(f"http://127.0.0.1:{server.server_port}/v1")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
