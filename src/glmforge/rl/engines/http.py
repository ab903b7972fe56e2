"""Requests to one server over HTTP, in threads, with bounded time and bounded replies."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx2

from glmforge.config.model import ModelConfig
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.files import parse_json, shown
from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError, EngineLostError, SampledGroup, checked

_BUSY = (429, 503)
_BYTES_PER_VALUE = 32
_MIN_VALUES = 1_000_000


class HttpEngine:
    """What servers of all kinds have in common. A subclass says what a group's request and reply look like.

    Args:
        vocab_size: of the tokenizer; a token beyond it is refused.
    """

    def __init__(self, url: str, config: RlEngineConfig, model: ModelConfig, vocab_size: int, key: str = "") -> None:
        self.url, self.config, self._vocab_size = url.rstrip("/"), config, vocab_size
        self._shape_MK = (model.num_moe_layers, model.num_experts_per_tok)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=config.connections + 1)
        timeout = httpx2.Timeout(config.timeout_s, connect=min(10.0, config.timeout_s))
        self._client = httpx2.Client(headers=headers, timeout=timeout, limits=limits, trust_env=False)
        self._pool = ThreadPoolExecutor(config.connections, "engine")

    def request_of(self, prompt: Sequence[int], params: SamplingParams) -> tuple[str, dict[str, Any]]:
        """Path and body of a group's request."""
        raise NotImplementedError

    def answers_of(self, reply: Mapping[str, Any]) -> list[Any]:
        """Of a group's reply, as `base.checked` takes them. May raise `LookupError`, `TypeError`, `AttributeError`."""
        raise NotImplementedError

    def begin(self, prompt: Sequence[int], params: SamplingParams) -> "Future[SampledGroup]":
        return self._pool.submit(self._sample, prompt, params)

    def _sample(self, prompt: Sequence[int], params: SamplingParams) -> SampledGroup:
        path, body = self.request_of(prompt, params)
        longest = len(prompt) + params.max_new_tokens
        per_token = 8 + (self._shape_MK[0] * (self._shape_MK[1] + 1) if params.experts else 0)
        reply = self.ask("POST", path, body, max_values=_MIN_VALUES + params.num_samples * longest * per_token)
        try:
            found = self.answers_of(reply)
        except (LookupError, TypeError, AttributeError):
            raise EngineError(f"{self.url}{path}: invalid reply: expected answers of token ids") from None
        if len(found) != params.num_samples:
            raise EngineError(f"{self.url}{path}: invalid reply: {len(found)} answers, not {params.num_samples}")
        return [checked(self.url, one, prompt, params, self._vocab_size, self._shape_MK) for one in found]

    def ask(
        self, method: str, path: str, body: "Mapping[str, Any] | bytes | None" = None, max_values: int = _MIN_VALUES
    ) -> Mapping[str, Any]:
        """The JSON object of a reply; {} for an empty one, {"list": ...} for a list. A busy server is asked again.

        Raises `EngineError`.
        """
        until, pause = time.monotonic() + self.config.timeout_s, 0.5
        while True:
            status, text = self._request(method, path, body, max_values * _BYTES_PER_VALUE)
            if status not in _BUSY:
                break
            if time.monotonic() + pause > until:
                raise EngineLostError(f"{self.url}{path}: still busy after {self.config.timeout_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 10.0)
        if status >= 500:
            raise EngineLostError(f"{self.url}{path}: {status}: {shown(text[:200])}")
        if status != 200:
            raise EngineError(f"{self.url}{path}: {status}: {shown(text[:300])}")
        if not text:
            return {}
        value = parse_json(text, object, source=f"{self.url}{path}", error=EngineError, max_values=max_values)
        if not isinstance(value, dict | list):
            raise EngineError(f"{self.url}{path}: invalid reply: {shown(text[:100])}")
        return value if isinstance(value, dict) else {"list": value}

    def _request(
        self, method: str, path: str, body: "Mapping[str, Any] | bytes | None", max_bytes: int
    ) -> tuple[int, str]:
        given: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        parts, size = list[bytes](), 0
        try:
            with self._client.stream(method, self.url + path, **({} if body is None else given)) as response:
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > max_bytes:
                        raise EngineError(f"{self.url}{path}: reply has more than {max_bytes:,} bytes")
        except httpx2.RequestError as error:
            raise EngineLostError(f"{self.url}{path}: does not answer ({type(error).__name__})") from None
        return response.status_code, b"".join(parts).decode("utf-8", "replace")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()


def integer(value: object) -> int | None:
    """A version that a server tells, as text or number; None if it is not one of ours."""
    return int(value) if isinstance(value, str | int) and str(value).isdecimal() else None
