"""Routes: each API's requests through the service, answered whole or as server-sent events.

Before a route is asked, a `Gate` checks host, origin and key; behind it, it turns every failure into the form of the
API whose path it is. A failure in the middle of a stream is the stream's last event.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glmforge.deploy.serve.access import Access, Later
from glmforge.deploy.serve.page import page_routes
from glmforge.deploy.serve.service import Running, ServedModel, Service
from glmforge.deploy.serve.weights import MAX_BUCKET_BYTES, WeightUpdates
from glmforge.extras import MissingPackageError
from glmforge.protocol import chat, completions, messages, openai, responses, tokens
from glmforge.protocol.body import read_body
from glmforge.protocol.request import ApiError, Ask, Context, Event, Kind, Writer

logger = logging.getLogger(__name__)

PING_SECONDS = 15
"""A comment is sent this often while a stream has nothing to say."""


@dataclass(frozen=True)
class Api:
    """One API: how bodies are read, answers and errors written.

    Attributes:
        prefix: of an answer's id.
        done: what ends a stream, besides its events.
        error_event: the name of an error in the middle of a stream.
    """

    parse: Callable[[Any, Context], Ask]
    writer: Callable[[Ask, Context, str], Writer]
    error: Callable[[ApiError], dict[str, Any]]
    prefix: str
    done: str | None = None
    error_event: str | None = None


CHAT = Api(chat.parse, chat.ChatWriter, openai.error, "chatcmpl-", "[DONE]")
APIS: Mapping[str, Api] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": Api(completions.parse, completions.CompletionWriter, openai.error, "cmpl-", "[DONE]"),
    "/v1/responses": Api(responses.parse, responses.ResponsesWriter, openai.error, "resp_", None, "error"),
    "/v1/messages": Api(messages.parse, messages.MessagesWriter, messages.error, "msg_", None, "error"),
    "/generate": Api(tokens.parse, tokens.TokensWriter, openai.error, "gen-", "[DONE]"),
}
Counting = Callable[[Any, Context], dict[str, Any]]
ANSWERED_AT_ONCE: Mapping[str, Counting] = {
    "/tokenize": tokens.tokenize,
    "/detokenize": tokens.detokenize,
    "/v1/messages/count_tokens": messages.count_tokens,
}
OPEN = {"/health", "/live"}
"""Need no key, as the page does not."""


WEIGHT_PATHS = ("/pause", "/resume", "/weights/begin", "/weights/bucket", "/weights/commit")


def make_app(service: Service, model: ServedModel, access: Access, updates: WeightUpdates | None = None) -> ASGIApp:
    """The whole application; without `updates` nobody can change the weights."""
    page = page_routes()
    routes = [
        *(Route(path, Answers(api, service, model), methods=["POST"]) for path, api in APIS.items()),
        *(Route(path, _at_once(count, service, model), methods=["POST"]) for path, count in ANSWERED_AT_ONCE.items()),
        *_other_routes(service, model),
        *([] if updates is None else _weight_routes(service, updates)),
        *page,
    ]
    app: ASGIApp = Gate(Router(routes), service, access, OPEN | {route.path for route in page})
    if access.origins:
        app = CORSMiddleware(
            app, allow_origins=list(access.origins), allow_methods=["GET", "POST"], allow_headers=["*"], max_age=600
        )
    return app


class Answers:
    """The route of an API's requests."""

    def __init__(self, api: Api, service: Service, model: ServedModel) -> None:
        self._api, self._service, self._model = api, service, model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, api, service = Request(scope, receive), self._api, self._service
        body = await read_json(request, service)
        ask = await asyncio.to_thread(api.parse, body, self._model)
        writer = api.writer(ask, self._model, f"{api.prefix}{secrets.token_hex(12)}")
        async with service.run(ask, scope["state"]["caller"], request.headers.get("x-request-id")) as running:
            if ask.stream:
                await _stream(_events(api, running, writer), service.limits.read_seconds, scope, receive, send)
                return
            answer = await _unless_gone(receive, _whole(running, writer))
            if answer is not None:
                await json_response(answer)(scope, receive, send)


class Gate:
    """What is done around every request: host, origin and key before it; errors, counts and headers behind it."""

    def __init__(self, app: ASGIApp, service: Service, access: Access, open_paths: set[str]) -> None:
        self._app, self._service, self._access, self._open = app, service, access, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, status = Headers(scope=scope), 0
        scope["app"] = self  # so that the router raises errors, which are answered here

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = MutableHeaders(scope=message)
                added["X-Content-Type-Options"] = "nosniff"
                if "x-request-id" in headers:
                    added["X-Request-Id"] = headers["x-request-id"][:200]
            await send(message)

        try:
            error = await self._pass_on(scope, headers, receive, noting)
            if error is not None and not status:
                answer = json_response(_api_of(scope["path"]).error(error), error.status)
                if isinstance(error, Later):
                    answer.headers["Retry-After"] = str(max(1, round(error.seconds)))
                if error.kind == "authentication":
                    answer.headers["WWW-Authenticate"] = "Bearer"
                await answer(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._service.metrics.responses[route, status or 499] += 1  # 499: the client had gone

    async def _pass_on(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> ApiError | None:
        """Have the route answer; a failure that it has not answered itself."""
        try:
            self._access.check_place(headers)
            if scope["path"] not in self._open:
                caller = self._access.caller(headers)
                self._access.count(caller)
                scope.setdefault("state", {})["caller"] = caller
            await self._app(scope, receive, send)
        except ApiError as error:
            return error
        except HTTPException as error:
            kind: Kind = "not_found" if error.status_code == 404 else "invalid_request"
            return ApiError(error.status_code, kind, f"{scope['method']} {scope['path'][:200]}: {error.detail}")
        except ClientDisconnect:
            pass
        except Exception as error:
            code = secrets.token_hex(4)
            logger.exception("a request has failed (%s)", code, exc_info=error)
            return ApiError(500, "server", f"the server has failed (see its log, {code})")
        return None


async def read_json(request: Request, service: Service) -> dict[str, Any]:
    """The body of a request. Raises `ApiError`."""
    return await asyncio.to_thread(read_body, await read_bytes(request, service, service.limits.body_bytes))


async def read_bytes(request: Request, service: Service, limit: int) -> bytes:
    """The same as it was sent, of at most `limit` bytes."""
    parts, size = [], 0
    too_large = ApiError(413, "too_large", f"the body has more than {limit:,} bytes; shorten it")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > limit:
        raise too_large
    try:
        async with asyncio.timeout(service.limits.read_seconds):
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "timeout", f"the body did not arrive within {service.limits.read_seconds:g} s") from None
    return b"".join(parts)


def json_response(content: object, status: int = 200) -> Response:
    """JSON in ASCII: what a body has brought may be half of a character."""
    return Response(json.dumps(content, allow_nan=False, separators=(",", ":")), status, media_type="application/json")


async def _events(api: Api, running: Running, writer: Writer) -> AsyncIterator[dict[str, str]]:
    """Of a stream, as sse-starlette takes them."""
    try:
        for event in writer.begin():
            yield _sent(event)
        async for update in running.updates():
            for event in writer.update(update):
                yield _sent(event)
        for event in writer.end():
            yield _sent(event)
    except ApiError as error:
        yield _sent(Event(api.error_event, api.error(error)))
    except Exception as error:
        code = secrets.token_hex(4)
        logger.exception("a stream has failed (%s)", code, exc_info=error)
        failure = ApiError(500, "server", f"the server has failed (see its log, {code})")
        yield _sent(Event(api.error_event, api.error(failure)))
    if api.done is not None:
        yield {"data": api.done}


def _sent(event: Event) -> dict[str, str]:
    data = {"data": json.dumps(event.data, allow_nan=False, separators=(",", ":"))}
    return data if event.name is None else {"event": event.name, **data}


async def _stream(
    events: AsyncIterator[dict[str, str]], patience: float, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send events; a client that takes none for `patience` seconds is left."""
    response = EventSourceResponse(events, ping=PING_SECONDS, sep="\n", send_timeout=patience)
    with suppress(SendTimeoutError):
        await response(scope, receive, send)


async def _whole(running: Running, writer: Writer) -> dict[str, Any]:
    async for update in running.updates():
        writer.update(update)
    return writer.whole()


async def _unless_gone(receive: Receive, answering: Any) -> dict[str, Any] | None:
    """The answer; None if the client goes before it is there."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    answer, watch = asyncio.ensure_future(answering), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, watch):
            task.cancel()
        await asyncio.gather(answer, watch, return_exceptions=True)


def _api_of(path: str) -> Api:
    """Whose form errors have at this path."""
    return next((api for prefix, api in APIS.items() if path == prefix or path.startswith(f"{prefix}/")), CHAT)


def _at_once(count: Counting, service: Service, model: ServedModel) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_json(Request(scope, receive), service)
        found = await asyncio.to_thread(count, body, model)
        await json_response(found)(scope, receive, send)

    return _Asgi(answer)


class _Asgi:
    """A route that is handed what ASGI hands; a plain function would be handed a request."""

    def __init__(self, function: Callable[[Scope, Receive, Send], Any]) -> None:
        self._function = function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._function(scope, receive, send)


def _other_routes(service: Service, model: ServedModel) -> list[Route]:
    cards = [
        {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "glmforge",
            "max_model_len": model.max_positions,
            "parent": None if name == model.model_names[0] else model.model_names[0],
        }
        for name in model.model_names
    ]

    async def models(_: Request) -> Response:
        return json_response({"object": "list", "data": cards, "has_more": False})

    async def one_model(request: Request) -> Response:
        wanted = request.path_params["name"]
        card = next((card for card in cards if card["id"] == wanted), None)
        if card is None:
            raise ApiError(
                404, "not_found", f"model: {wanted[:200]!r} is not served; choose one of {', '.join(model.model_names)}"
            )
        return json_response(card)

    async def abort(request: Request) -> Response:
        body = await read_json(request, service)
        request_id = body.get("id")
        if not isinstance(request_id, str):
            raise ApiError(400, "invalid_request", "id: must be that of a request (request_id or X-Request-Id)", "id")
        if not (number := service.abort(request_id, request.state.caller)):
            raise ApiError(404, "not_found", f"id: no request {request_id[:200]!r} is running", "id")
        return json_response({"id": request_id, "aborted": number})

    async def health(_: Request) -> Response:
        return json_response(*(({"status": "draining"}, 503) if service.is_draining else ({"status": "ok"}, 200)))

    async def live(_: Request) -> Response:
        return json_response({"status": "ok"})

    async def metrics(_: Request) -> Response:
        try:
            text, kind = service.metrics.text(service.engine.engine, service.num_running, model.model_names[0])
        except MissingPackageError as error:
            raise ApiError(501, "server", str(error)) from None
        return Response(text, headers={"Content-Type": kind})

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", one_model, methods=["GET"]),
        Route("/abort", abort, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/live", live, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _weight_routes(service: Service, updates: WeightUpdates) -> list[Route]:
    async def answer(request: Request) -> Response:
        body = await read_bytes(request, service, MAX_BUCKET_BYTES)
        return json_response(await updates.answer(request.url.path, body))

    posts = [Route(path, answer, methods=["POST"]) for path in WEIGHT_PATHS]
    return [*posts, Route("/weights", answer, methods=["GET"])]


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
