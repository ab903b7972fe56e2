"""A server of the chat page whose answers are written beforehand, in the chunks of OpenAI's chat completions."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from glmforge.deploy.serve.page import page_routes

END = "end"
"""The answer ends here, in order but without an end of its own."""
HOLD = "hold"
"""Nothing more comes; the client has to go."""
WAIT = "wait"
"""What follows comes after `go` is set."""
CUT = "cut"
"""The connection ends in the middle."""

Delta = dict[str, Any]
Step = Delta | str


@dataclass
class Refusal:
    status: int
    message: str
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return JSONResponse({"error": {"message": self.message}}, self.status, self.headers)


@dataclass
class ChatServer:
    """What it was asked, and the answers to come.

    Attributes:
        answers: one per request: deltas of chunks, an `{"error": ...}`, `HOLD`, `CUT`; or a refusal.
        asked: bodies and Authorization headers of requests.
    """

    url: str
    answers: list[Sequence[Step] | Refusal] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["glm-test"])
    key: str = ""
    go: Event = field(default_factory=Event)


def said(*words: str) -> list[Step]:
    """An answer of text alone."""
    return [{"content": word} for word in words]


def thought(*words: str) -> list[Step]:
    return [{"reasoning_content": word} for word in words]


def called(name: str, *arguments: str, index: int = 0) -> list[Step]:
    """A call of a tool whose arguments come in pieces."""
    head = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": part}} for part in arguments]
    return [{"tool_calls": [one]} for one in (head, *rest)]


async def _chunks(steps: Sequence[Step], state: ChatServer) -> AsyncIterator[str]:
    num, calls = 0, False
    for step in steps:
        await asyncio.sleep(0)
        if step == HOLD:
            await asyncio.Event().wait()
        if step == WAIT:
            await asyncio.to_thread(state.go.wait, 20)
            continue
        if step == END:
            return
        if step == CUT:
            raise ConnectionError("the script cuts the connection")
        assert isinstance(step, dict)
        num, calls = num + 1, calls or "tool_calls" in step
        chunk = {"model": state.models[0], "choices": [{"index": 0, "delta": step, "finish_reason": None}]}
        yield _data(step if "error" in step else chunk)
    yield _data({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    yield _data({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": num, "total_tokens": num + 7}})
    yield "data: [DONE]\r\n\r\n"


def _data(content: object) -> str:
    return f"data: {json.dumps(content)}\r\n\r\n"


def _app(state: ChatServer) -> Starlette:
    async def models(request: Request) -> Response:
        if state.key and request.headers.get("authorization") != f"Bearer {state.key}":
            return Refusal(401, "wrong key").response()
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in state.models]})

    async def chat(request: Request) -> Response:
        state.asked.append(await request.json())
        state.keys.append(request.headers.get("authorization", ""))
        if state.key and state.keys[-1] != f"Bearer {state.key}":
            return Refusal(401, "wrong key").response()
        answer = state.answers.pop(0)
        if isinstance(answer, Refusal):
            return answer.response()
        return StreamingResponse(_chunks(answer, state), media_type="text/event-stream")

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            *page_routes(),
        ]
    )


@contextmanager
def chat_server() -> Iterator[ChatServer]:
    """One on a free port of this machine."""
    listening = socket.create_server(("127.0.0.1", 0))
    state = ChatServer(f"http://127.0.0.1:{listening.getsockname()[1]}")
    config = uvicorn.Config(_app(state), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
