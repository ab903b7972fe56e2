"""What clients of servers send and take: forms of three kinds of servers, and replies that are none.

The servers are real ones over HTTP that answer with what the test says. SGLang's form is from its source: no server of
it ran here.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.rl_engine import RlEngineConfig
from glmforge.generate.params import SamplingParams
from glmforge.rl.engines.base import EngineError, EngineLostError
from glmforge.rl.engines.http import HttpEngine
from glmforge.rl.engines.process import EngineProcess
from glmforge.rl.engines.served import GlmforgeEngine
from glmforge.rl.engines.sglang import SglangEngine
from glmforge.rl.engines.vllm import VllmEngine
from helpers.models import tiny_config

PROMPT = (1, 2, 3)
PARAMS = SamplingParams(max_new_tokens=2, num_samples=2, seed=5, logprobs=0, stop_ids=(476,))
Reply = tuple[int, Any]


@contextmanager
def serving(answer: Callable[[str, Any], Reply]) -> Iterator[str]:
    """The URL of a server that answers a path and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, content = answer(self.path, json.loads(body or b"null"))
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def client(kind: type[HttpEngine], url: str, **settings: Any) -> HttpEngine:
    name = {GlmforgeEngine: "glmforge", VllmEngine: "vllm", SglangEngine: "sglang"}[kind]
    return kind(url, RlEngineConfig(kind=name, urls=[url], **settings), tiny_config(), 512)  # type: ignore[arg-type]


def group(answer: dict[str, Any]) -> Reply:
    good = {"tokens": [7, 476], "logprobs": [-0.5, -1], "finish_reason": "stop", "versions": [3, 4]}
    return 200, {"choices": [good, good | answer]}


FORMS: list[tuple[type[HttpEngine], str, Callable[[list[int], list[float]], Any]]] = [
    (
        GlmforgeEngine,
        "/generate",
        lambda tokens, logprobs: {
            "choices": [{"tokens": tokens, "logprobs": logprobs, "finish_reason": "stop", "versions": [3, 4]}] * 2
        },
    ),
    (
        VllmEngine,
        "/v1/completions",
        lambda tokens, logprobs: {
            "choices": [
                {"index": i, "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "stop"}
                for i in (1, 0)
            ]
        },
    ),
    (
        SglangEngine,
        "/generate",
        lambda tokens, logprobs: (
            [
                {
                    "output_ids": tokens,
                    "meta_info": {
                        "finish_reason": {"type": "stop", "matched": 476},
                        "output_token_logprobs": [[x, t, None] for x, t in zip(logprobs, tokens, strict=True)],
                    },
                }
            ]
            * 2
        ),
    ),
]


@pytest.mark.parametrize(("kind", "path", "form"), FORMS)
def test_a_group_is_asked_for_and_read(kind: type[HttpEngine], path: str, form: Callable[..., Any]) -> None:
    asked: list[tuple[str, Any]] = []

    def answer(path: str, body: Any) -> Reply:
        asked.append((path, body))
        return 200, form([7, 476], [-0.5, -0.25])

    with serving(answer) as url:
        samples = client(kind, url).begin(PROMPT, PARAMS).result()
    assert [(one.tokens, one.finished) for one in samples] == [([7, 476], "stop")] * 2
    assert [one.logprob for one in samples[0].logprobs] == [-0.5, -0.25]
    assert asked[0][0] == path
    settings = asked[0][1] | asked[0][1].get("sampling_params", {})
    assert settings["n"] == 2
    assert settings["stop_token_ids"] == [476]
    assert [1, 2, 3] in asked[0][1].values()
    assert 5 in settings.values()


WRONG: list[tuple[Reply, str]] = [
    ((200, b"<html>"), "not valid JSON"),
    ((200, []), "expected 2 answers"),
    ((200, {"choices": [{}]}), "expected 2 answers"),
    ((200, {"choices": 7}), "expected 2 answers"),
    ((200, {"choices": [{"tokens": [7]}, {}]}), "expected 2 answers"),
    ((200, b"[" * 100_000), "not usable JSON"),
    (group({"tokens": [7, 512]}), "tokens are not ids from 0 to 511"),
    (group({"tokens": [7, -1]}), "tokens are not ids"),
    (group({"tokens": [7, True]}), "tokens are not ids"),
    (group({"tokens": "ab"}), "tokens are not ids"),
    (group({"logprobs": [-1]}), "one log-probability for each token"),
    (group({"logprobs": None}), "one log-probability for each token"),
    (group({"logprobs": [-1, None]}), "not finite numbers below 0"),
    (group({"logprobs": [-1, 0.5]}), "not finite numbers below 0"),
    ((200, b'{"choices": [{"tokens": [7], "logprobs": [-Infinity], "finish_reason": "stop"}]}'), "not usable JSON"),
    (group({"tokens": [7] * 3, "logprobs": [-1] * 3}), "3 of at most 2 tokens"),
    (group({"tokens": [], "logprobs": []}), "0 of at most 2 tokens"),
    (group({"finish_reason": "because"}), "ended by 'because'"),
    (group({"versions": [1]}), "one version of the weights for each token"),
    (group({"versions": [1, -1]}), "one version of the weights for each token"),
    (group({"versions": {"1": 1}}), "one version of the weights for each token"),
    (group({"versions": [1, 2**40]}), "one version of the weights for each token"),
    ((400, {"error": {"message": "no\nsuch model"}}), "status 400"),
    ((302, b""), "status 302"),
]


@pytest.mark.parametrize(("reply", "problem"), WRONG)
def test_a_reply_that_is_none_is_one_line_with_the_url(reply: Reply, problem: str) -> None:
    with serving(lambda path, body: reply) as url:
        with pytest.raises(EngineError, match=problem) as raised:
            client(GlmforgeEngine, url).begin(PROMPT, PARAMS).result()
        assert url in str(raised.value)
        assert "\n" not in str(raised.value)
        assert type(raised.value) is EngineError


EXPERTS = [[[0, 1]] * 3] * 4
"""Of 3 + 2 tokens but the last, in 3 MoE layers."""


@pytest.mark.parametrize(
    ("experts", "is_right"),
    [
        (EXPERTS, True),
        (EXPERTS[1:], False),
        (None, False),
        ([[[0, -1]] * 3] * 4, False),
        ([[[0, 99_999]] * 3] * 4, False),
    ],
)
def test_experts_are_checked(experts: Any, is_right: bool) -> None:
    params = SamplingParams(max_new_tokens=2, num_samples=2, seed=5, logprobs=0, experts=True)
    status, body = group({"experts": experts})
    body["choices"][0]["experts"] = EXPERTS
    with serving(lambda path, given: (status, body)) as url:
        future = client(GlmforgeEngine, url).begin(PROMPT, params)
        if is_right:
            assert future.result()[1].details.experts_TMK.tolist() == experts  # type: ignore[union-attr]
        else:
            with pytest.raises(EngineError, match=r"experts are not \[3, 2\] numbers for each token"):
                future.result()


@pytest.mark.parametrize("reply", [(500, {}), group({"finish_reason": "abort"})])
def test_a_server_that_fails_is_lost(reply: Reply) -> None:
    with serving(lambda path, body: reply) as url, pytest.raises(EngineLostError):
        client(GlmforgeEngine, url).begin(PROMPT, PARAMS).result()
    with pytest.raises(EngineLostError, match="does not answer"):
        client(GlmforgeEngine, url).begin(PROMPT, PARAMS).result()


def test_a_server_that_was_started_again_is_lost_until_it_is_sent_weights() -> None:
    answer = {"tokens": [7, 476], "logprobs": [-0.5, -1], "finish_reason": "stop"}
    with (
        serving(lambda path, body: (200, {"choices": [answer] * 2})) as url,
        pytest.raises(EngineLostError, match="was started again and has not been sent weights"),
    ):
        client(GlmforgeEngine, url).begin(PROMPT, PARAMS).result()


def test_a_process_ends_while_its_requests_are_not_answered() -> None:
    code = "from test_engine_replies import *; engine = client(GlmforgeEngine, sys.argv[1], connections=1)\n"
    code += "futures = [engine.begin(PROMPT, PARAMS) for _ in range(3)]\n"
    code += "while not futures[0].running(): pass\n"
    code += "engine.close(); print([one.cancelled() for one in futures])"
    wait = threading.Event()
    with serving(lambda path, body: (wait.wait(300), group({}))[1]) as url:
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        environment = {**os.environ, "PYTHONPATH": path}
        ended = subprocess.run(
            [sys.executable, "-c", code, url], env=environment, capture_output=True, text=True, timeout=200, check=True
        )
        wait.set()
    assert ended.stdout == "[False, True, True]\n"


def test_a_busy_server_is_asked_again_and_a_slow_one_is_lost() -> None:
    replies = [(429, {}), (503, {}), group({})]
    with serving(lambda path, body: replies.pop(0)) as url:
        assert len(client(GlmforgeEngine, url).begin(PROMPT, PARAMS).result()) == 2
    wait = threading.Event()
    with serving(lambda path, body: (wait.wait(5), group({}))[1]) as url:
        with pytest.raises(EngineLostError, match="ReadTimeout"):
            client(GlmforgeEngine, url, timeout_s=0.2).begin(PROMPT, PARAMS).result()
        wait.set()


@pytest.mark.parametrize(
    ("kind", "file", "expected"),
    [
        (VllmEngine, "model", ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version"]),
        (VllmEngine, "adapter", ["/v1/load_lora_adapter", "/reset_prefix_cache", "/update_weight_version"]),
        (SglangEngine, "model", ["/update_weights_from_disk"]),
    ],
)
def test_weights_are_read_from_a_directory(
    kind: type[HttpEngine], file: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / f"{file}_config.json").write_text("{}")
    asked: list[tuple[str, Any]] = []

    def answer(path: str, body: Any) -> Reply:
        asked.append((path, body))
        return 200, {"success": True, "weight_version": "12"}

    with serving(answer) as url:
        engine: Any = client(kind, url)
        engine.load(tmp_path, 12)
        assert engine.version() == 12
        assert engine.request_of(PROMPT, PARAMS)[1].get("model") == ("policy" if file == "adapter" else None)
    assert [path for path, _ in asked[:-1]] == expected
    assert str(tmp_path) in json.dumps(asked[0][1])
    assert '"12"' in json.dumps(asked[len(expected) - 1][1])


def test_another_program_at_the_address_is_not_taken_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glmforge.rl.engines.process._FREE_S", 0.1)
    with serving(lambda path, body: (200, {"version": 0})) as url:
        own = EngineProcess(client(GlmforgeEngine, url), ["sleep", "60"], tmp_path / "server.log", 5.0)
        try:
            with pytest.raises(EngineError, match=rf"^{url}: another program listens there; stop it"):
                own.start(tmp_path)
            assert own.process is None
        finally:
            own.close()
