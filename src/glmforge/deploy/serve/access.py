"""Who may ask: API keys, names of the host, origins of web pages, requests per minute.

A page on the web can have its visitor's browser ask a server on the visitor's own machine. It cannot read the answer
without CORS, but it can make the server work; so requests of other origins are refused before anything else is done.
With a name of its own that resolves to 127.0.0.1 (DNS rebinding) it would count as the same origin; so a server that
asks for no key answers to known names of its host only.
"""

import hashlib
import hmac
import ipaddress
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from glmforge.errors import GlmforgeError
from glmforge.files import shown
from glmforge.protocol.request import ApiError, Kind

KEYS_VARIABLE = "GLMFORGE_API_KEYS"
"""Environment variable with API keys, separated by commas or white space."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANYONE = "anyone"
"""The caller of a server without keys."""


def read_keys(file: Path | None) -> list[str]:
    """API keys of a file, one a line, lines that begin with `#` aside, and of `GLMFORGE_API_KEYS`.

    Raises `GlmforgeError` if the file cannot be read, or a given file or variable has no key.
    """
    keys = os.environ.get(KEYS_VARIABLE, "").replace(",", " ").split()
    if KEYS_VARIABLE in os.environ and not keys:
        raise GlmforgeError(f"{KEYS_VARIABLE}: is set but contains no key; set a key, or unset it")
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise GlmforgeError(f"{shown(file)}: cannot be read as a file of API keys ({error})") from None
        in_file = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not in_file:
            raise GlmforgeError(f"{shown(file)}: contains no API key; write one per line")
        keys += in_file
    for key in keys:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise GlmforgeError("API key: use printable ASCII characters without spaces")  # it is not shown
    return keys


class Access:
    """Checks requests by their headers; raises `ApiError`.

    Args:
        keys: one of them is required, if there are any. Only their digests are kept.
        hosts: names that the server may be asked by; None for any.
        origins: of web pages that may ask it, besides its own.
        requests_per_minute: of each key; None for no limit.
    """

    def __init__(
        self,
        keys: Collection[str] = (),
        hosts: Collection[str] | None = LOOPBACK,
        origins: Collection[str] = (),
        requests_per_minute: int | None = None,
    ) -> None:
        self._digests = [_digest(key) for key in keys]
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self.origins = frozenset(origins)
        self._per_minute = requests_per_minute
        self._left: dict[str, tuple[float, float]] = {}
        """Of each caller, how many requests it might make at a time (seconds)."""

    def check_place(self, headers: Mapping[str, str]) -> None:
        """Refuse names of hosts and origins that are not ours."""
        host = headers.get("host", "")
        if self._hosts is not None and _host_name(host) not in self._hosts:
            raise ApiError(
                403,
                "permission",
                f"Host: {host[:100]!r} is not a name of this server; start it with --allow-host to add one",
            )
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and urlsplit_host(origin) != host.lower():
            raise ApiError(
                403,
                "permission",
                f"Origin: {origin[:100]!r} is not allowed; start with --allow-origin to add it",
            )

    def caller(self, headers: Mapping[str, str]) -> str:
        """Who asks: a name for the key, which says nothing about it."""
        if not self._digests:
            return ANYONE
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest, caller = _digest(key), None
        for number, known in enumerate(self._digests):  # all of them, so that time tells nothing
            if hmac.compare_digest(digest, known):
                caller = f"key {number + 1}"
        if caller is None:
            raise ApiError(
                401, "authentication", "API key: missing or wrong; send 'Authorization: Bearer KEY' or x-api-key"
            )
        return caller

    def count(self, caller: str, now: float | None = None) -> None:
        """Count a request; 429 if the caller has made too many. `now`: seconds of a monotonic clock."""
        if self._per_minute is None:
            return
        now = time.monotonic() if now is None else now
        rate = self._per_minute / 60
        left, since = self._left.get(caller, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - since) * rate)
        if left < 1:
            raise Later(
                "rate_limit", f"more than {self._per_minute:,} requests per minute; try again later", (1 - left) / rate
            )
        self._left[caller] = left - 1, now


class Later(ApiError):
    """A refusal for now.

    Attributes:
        seconds: to wait before another try.
    """

    def __init__(self, kind: Kind, message: str, seconds: float = 1.0) -> None:
        super().__init__(429 if kind == "rate_limit" else 503, kind, message)
        self.seconds = seconds


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def urlsplit_host(origin: str) -> str | None:
    """Host and port of an origin, as a Host header has them."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _host_name(header: str) -> str | None:
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
