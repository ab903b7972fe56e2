"""Questions to a Prometheus on this machine."""

import base64
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import ConfigError, HostError
from glmforge.files import parse_json, read_text, shown

_LIMIT_S, _MOST_BYTES = 20.0, 16 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Login = tuple[str, str]


@dataclass(frozen=True)
class Prometheus:
    """A server of Prometheus' HTTP API."""

    url: str
    login: Login | None = None

    def get(self, path: str) -> Any:
        """`data` of an answer. Raises `HostError`, with Prometheus' reason."""
        try:
            with _OPENER.open(_request(self.url + path, self.login), timeout=_LIMIT_S) as reply:
                text = reply.read(_MOST_BYTES).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            raise HostError(f"{self.url}: {error.read(500).decode('utf-8', 'replace')}") from None
        except (OSError, ValueError) as error:
            raise HostError(f"{self.url}: does not answer ({error}); see glmforge monitor status") from None
        return parse_json(text, dict, source=self.url, error=HostError)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series at this moment."""
        found: list[dict[str, Any]] = self.get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")[
            "result"
        ]
        return found

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Series from `start` to `end`, seconds since 1970."""
        words = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": step})
        found: list[dict[str, Any]] = self.get(f"/api/v1/query_range?{words}")["result"]
        return found

    def answers_strangers(self) -> bool:
        """Whether it answers without a login."""
        return is_healthy(self.url + "/api/v1/status/buildinfo", None)


def is_healthy(url: str, login: Login | None) -> bool:
    """Whether a server answers there with success."""
    try:
        with _OPENER.open(_request(url, login), timeout=5) as reply:
            return int(reply.status) == 200
    except (OSError, ValueError):
        return False


def read_login(path: Path) -> Login:
    """Raises `ConfigError` if the file is not one line, user:password."""
    user, colon, password = read_text(path, error=ConfigError, max_bytes=4096).strip().partition(":")
    if not (user and colon and password) or "\n" in password:
        raise ConfigError(f"{shown(path)}: must hold one line, user:password")
    return user, password


def _request(url: str, login: Login | None) -> urllib.request.Request:
    request = urllib.request.Request(url)
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(':'.join(login).encode()).decode()}")
    return request
