"""Requests to one server over HTTP, from several threads, with bounded time and bounded replies."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx2

from glmforge.config.model import ModelConfig
from glmforge.config.rl_engine import RlEngineConfig
from glmforge.files import parse_json, shown
from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError, EngineLostError, SampledGroup, checked

_BUSY, _CLOSE_S = (429, 503), 1.0
_MIN_VALUES, _BYTES_PER_VALUE = 1_000_000, 32
Body = Mapping[str, Any] | bytes | None


class HttpEngine:
    """What servers of all kinds have in common. A subclass says what a group's request and reply look like.

    Args:
        vocab_size: of the tokenizer; a token beyond it is refused.
        key: the API key; empty for none.

    Attributes:
        version_at: path of what tells the version of the weights, and its name there.
    """

    version_at = ("/version", "weight_version")

    def __init__(self, url: str, config: RlEngineConfig, model: ModelConfig, vocab_size: int, key: str = "") -> None:
        self.url, self.config, self._vocab_size = url.rstrip("/"), config, vocab_size
        self._shape_MK = (model.num_moe_layers, model.num_experts_per_tok)
        self._client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(config.timeout_s, connect=min(10.0, config.timeout_s)),
            limits=httpx2.Limits(max_connections=config.connections + 1),
            trust_env=False,
        )
        self._threads = _Threads(config.connections)

    def request_of(self, prompt: Sequence[int], params: SamplingParams) -> tuple[str, dict[str, Any]]:
        """Path and body of a group's request."""
        raise NotImplementedError

    def answers_of(self, reply: Mapping[str, Any]) -> list[Any]:
        """Of a group's reply, as `base.checked` takes them. May raise `LookupError`, `TypeError`, `AttributeError`."""
        raise NotImplementedError

    def load(self, directory: Path, version: int) -> None:
        """Have the server read weights, in Hugging Face's format or adapters in PEFT's."""
        raise NotImplementedError

    def number(self, version: int) -> None:
        """Tell the server the version of the weights that it was started with."""
        raise NotImplementedError

    def version(self) -> int | None:
        """Of the weights, as they were numbered when they were sent; None before that."""
        path, name = self.version_at
        found = str(self.ask("GET", path).get(name))
        return int(found) if found.isdecimal() and len(found) < 20 else None

    def begin(self, prompt: Sequence[int], params: SamplingParams) -> "Future[SampledGroup]":
        """Ask for the samples of a prompt; `EngineError` comes through the future."""
        return self._threads.submit(lambda: self._sample(prompt, params))

    def _sample(self, prompt: Sequence[int], params: SamplingParams) -> SampledGroup:
        path, body = self.request_of(prompt, params)
        per_token = 8 + (self._shape_MK[0] * (self._shape_MK[1] + 1) if params.experts else 0)
        num_tokens = params.num_samples * (len(prompt) + params.max_new_tokens)
        reply = self.ask("POST", path, body, _MIN_VALUES + num_tokens * per_token)
        try:
            found = self.answers_of(reply)
            if len(found) == params.num_samples:
                return [checked(self.url, one, prompt, params, self._vocab_size, self._shape_MK) for one in found]
        except (LookupError, TypeError, AttributeError):
            found = []
        raise EngineError(f"{self.url}{path}: invalid reply: expected {params.num_samples} answers of token ids")

    def ask(self, method: str, path: str, body: Body = None, max_values: int = _MIN_VALUES) -> dict[str, Any]:
        """The JSON object of a reply; {"list": ...} for a list. Raises `EngineError`, as `tell` does."""
        text = self.tell(path, body, method, max_values)
        value = parse_json(text, object, source=f"{self.url}{path}", error=EngineError, max_values=max_values)
        return value if isinstance(value, dict) else {"list": value}

    def tell(self, path: str, body: Body, method: str = "POST", max_values: int = _MIN_VALUES) -> str:
        """The text of the reply. A busy server is asked again."""
        until, pause = time.monotonic() + self.config.timeout_s, 0.5
        while (reply := self._request(method, path, body, max_values * _BYTES_PER_VALUE))[0] in _BUSY:
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
            pause = min(2 * pause, 10.0)
        status, text = reply
        if status != 200:
            kind = EngineLostError if status >= 500 or status in _BUSY else EngineError
            raise kind(f"{self.url}{path}: status {status}: {shown(text[:200])}")
        return text

    def _request(self, method: str, path: str, body: Body, max_bytes: int) -> tuple[int, str]:
        """Status and text."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        parts, size = list[bytes](), 0
        try:
            with self._client.stream(method, self.url + path, **({} if body is None else content)) as response:
                for part in response.iter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > max_bytes:
                        raise EngineError(f"{self.url}{path}: reply has more than {max_bytes:,} bytes")
        except httpx2.RequestError as error:
            raise EngineLostError(f"{self.url}{path}: does not answer ({type(error).__name__})") from None
        return response.status_code, b"".join(parts).decode("utf-8", "replace")

    def close(self) -> None:
        self._threads.close()
        self._client.close()


class _Threads:
    """As a `ThreadPoolExecutor`, but a process can end while its requests are not answered."""

    def __init__(self, most: int) -> None:
        self._most, self._threads = most, list[threading.Thread]()
        self._calls: SimpleQueue[tuple[Future[SampledGroup], Callable[[], SampledGroup]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], SampledGroup]) -> "Future[SampledGroup]":
        future: Future[SampledGroup] = Future()
        self._calls.put((future, call))
        if len(self._threads) < self._most:
            self._threads.append(threading.Thread(target=self._run, name="engine", daemon=True))
            self._threads[-1].start()
        return future

    def close(self) -> None:
        """Cancel what has not begun, and wait a moment for what is about to end."""
        with suppress(Empty):
            while (left := self._calls.get_nowait()) is not None:
                left[0].cancel()
        for _ in self._threads:
            self._calls.put(None)
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, call = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised again by the future
                    future.set_exception(error)
            del asked, future, call  # a tensor that is freed while the interpreter ends aborts the process
