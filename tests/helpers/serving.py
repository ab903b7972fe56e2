"""A server of a small model as a process of its own, and what tests ask of it."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import torch

from glmforge.checkpoint.convert.hf_export import export_hf
from glmforge.model import GlmMoe
from helpers.command import Commands, Started
from helpers.models import randomize_, tiny_config

NAME = "tiny"
KEEPS_ON = {"max_tokens": 30_000, "ignore_eos": True, "temperature": 0}
"""Of an answer that takes longer than any test: the settings of a completion."""


def export_tiny_model(directory: Path, tokenizer: Path) -> Path:
    """A model of random weights with room for long answers, in fp32."""
    config = tiny_config(max_position_embeddings=32_768)
    model = GlmMoe(config)
    randomize_(model)
    target = directory / NAME
    export_hf(model.state_dict(), config, target, dtype=torch.float32, tokenizer_dir=tokenizer)
    return target


@dataclass
class Server:
    """A running server; `ask` sends to it."""

    started: Started
    url: str

    @property
    def pid(self) -> int:
        return self.started.process.pid

    def ask(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        """POST with a body, else GET."""
        method = "GET" if body is None else "POST"
        options.setdefault("timeout", 60)
        return httpx2.request(method, self.url + path, json=body, **options)

    def complete(self, **settings: Any) -> httpx2.Response:
        """A completion."""
        return self.ask("/v1/completions", {"model": NAME, "prompt": "def main", **settings})

    @contextmanager
    def streaming(self, headers: dict[str, str] | None = None, **settings: Any) -> Iterator[Iterator[str]]:
        """The lines of a completion's stream; leaving it closes the connection."""
        body = {"model": NAME, "prompt": "def main", "stream": True, **settings}
        url = f"{self.url}/v1/completions"
        with httpx2.Client(timeout=60) as client, client.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                response.read()
                raise AssertionError(response.text)
            yield (line for line in response.iter_lines() if line)

    def metric(self, name: str, **options: Any) -> float:
        """Of the server's metrics, one by name, and labels but the model's; 0 if it has none."""
        text = self.ask("/metrics", **options).text
        found = re.search(rf"^{re.escape(name)}(?:{{model_name=.*}})? (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_until(self, reached: Callable[[], bool]) -> None:
        """Poll until something is so, or the server has ended."""
        self.started.wait_until(reached)

    def wait_for_idle(self) -> None:
        """Until no request runs."""
        self.wait_until(lambda: self.metric("vllm:num_requests_running") == 0)
        assert self.metric("vllm:num_requests_waiting") == 0


def start_server(commands: Commands, model: Path, *options: str, **environment: str) -> Server:
    """A server on a free port, once it listens."""
    started = commands.start(
        "serve", str(model), "--port", "0", "--cache-gib", "0.05", *options, environment=environment or None
    )
    return Server(started, address_in(started))


def address_in(started: Started) -> str:
    """Where a server listens, once it does."""
    started.wait_until(lambda: " at http" in started.output)
    found = re.search(r"at (http://\S+:\d+)", started.output)
    assert found is not None, started.output
    return found[1]
