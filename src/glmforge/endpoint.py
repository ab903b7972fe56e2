"""Requests to an OpenAI-compatible server that may be slow, busy, broken or gone: chat completions, embeddings.

A failure that may pass (no connection, timeout, a reply cut off, 408, 409, 425, 429, 5xx) is tried again after 1, 2,
4, ... seconds with some jitter, or after what `Retry-After` says. 400, 404 of a model's request, 413 and 422 are the
request's own fault: it is refused permanently. 401, 403 and 404 at the first request end the run: nothing will work.
"""

import asyncio
import email.utils
import random
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from glmforge.errors import DataError

MAX_WAIT = 60.0
"""Seconds between two attempts at most, unless the server asks for more."""

_MAX_RETRY_AFTER = 600.0
_MAY_PASS = frozenset({408, 409, 425, 429})
_HOPELESS = frozenset({401, 402, 403, 404, 405})


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended.

    Attributes:
        outcome: "done"; "refused" permanently; "unpaid", which may be tried again; "lost", the same, but it may have
            been billed.
        reply: the server's JSON, if done.
        status, message: what the server said, or what went wrong.
        wait: seconds that the server asks to wait.
    """

    outcome: Literal["done", "refused", "unpaid", "lost"]
    reply: Mapping[str, Any] | None = None
    status: int = 0
    message: str = ""
    wait: float | None = None


class Endpoint:
    """A server's address for one kind of request; a context manager.

    Args:
        url: with its path, such as `http://localhost:8000/v1/chat/completions`.
        key: sent as a bearer token; empty for none.
        timeout: seconds for a reply, from first to last byte.
        connections: requests at the same time.
        check: is handed the JSON of a reply, and raises where it is not the kind of reply that was requested.
    """

    def __init__(
        self, url: str, key: str, timeout: float, connections: int = 1, check: Callable[[Any], object] | None = None
    ) -> None:
        self._url, self._timeout, self._key, self._check = url, timeout, key, check
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._client = httpx2.AsyncClient(headers=headers, timeout=None, limits=limits, follow_redirects=False)

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def ask(self, payload: Mapping[str, Any]) -> Attempt:
        """One attempt.

        Raises:
            DataError: the server will take no request of glmforge (wrong key, no such path or model).
        """
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.post(self._url, json=payload)
        except TimeoutError:
            return Attempt("lost", message=f"no reply within {self._timeout:g} s")
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return Attempt("unpaid", message=f"no connection: {self._clean(str(error))}")
        except httpx2.RequestError as error:  # a connection lost on the way, or a reply that cannot be decoded
            return Attempt("lost", message=f"connection broken: {type(error).__name__}")
        return self._judge(response)

    def _judge(self, response: httpx2.Response) -> Attempt:
        status = response.status_code
        if status == 200:
            return self._reply(response)
        message = self._clean(response.text[:500])
        if status in _MAY_PASS or status >= 500:
            return Attempt(
                "unpaid", status=status, message=message, wait=retry_after(response.headers.get("retry-after"))
            )
        if status in _HOPELESS or 300 <= status < 400:
            raise DataError(f"{self._url}: rejects all requests ({status}: {message}); check URL, model and API key")
        return Attempt("refused", status=status, message=message)

    def _reply(self, response: httpx2.Response) -> Attempt:
        try:
            reply = response.json()
            if self._check is not None:
                self._check(reply)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Attempt("lost", status=200, message=f"no such reply: {self._clean(response.text[:200])}")
        return Attempt("done", reply=reply, status=200)

    def _clean(self, text: str) -> str:
        """Servers echo keys in their errors; no message of glmforge may."""
        text = text.replace(self._key, "***") if self._key else text
        return re.sub(r"\s+", " ", text).strip()


async def ask_again(
    ask: Callable[[], Awaitable[Attempt]], attempts: int, first_wait: float, jitter_key: str
) -> Attempt:
    """Call `ask` until an attempt is done or refused; return the last attempt if none is. Raises as `ask` does.

    Args:
        first_wait: seconds before the second attempt; doubled each time.
        jitter_key: the jitter of the waits is a function of it, so that different keys spread.
    """
    for number in range(1, attempts):
        attempt = await ask()
        if attempt.outcome in ("done", "refused"):
            return attempt
        await asyncio.sleep(max(backoff(number, jitter_key, first_wait), attempt.wait or 0.0))
    return await ask()


def url_fault(url: str, example: str = "http://localhost:8000/v1") -> str | None:
    """What is wrong with the URL of a server, without repeating what may be secret in it; None if nothing is."""
    try:
        parts = urlsplit(url)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # mismatched brackets, an invalid port
        is_server, parts = False, urlsplit("")
    if parts.username or parts.password or parts.query:
        return "a URL with a password or key in it would be logged: use --api-key-env"
    return None if is_server else f"not a server URL; use one like {example}"


def retry_after(header: str | None, now: float | None = None) -> float | None:
    """Seconds that a `Retry-After` header asks for (a number or a date), or None."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = email.utils.parsedate_to_datetime(header).timestamp()
        except ValueError:
            return None
        seconds = moment - (time.time() if now is None else now)
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if seconds == seconds else None


def backoff(attempt: int, key: str, first: float) -> float:
    """Seconds before attempt `attempt` + 1: doubled each time, between half and all of it, so that clients spread."""
    jitter = random.Random(f"{key} {attempt}").uniform(0.5, 1)
    return min(first * 2 ** (attempt - 1), MAX_WAIT) * jitter
