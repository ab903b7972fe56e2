"""Who may ask, and how much: keys, hosts, origins, bodies, queues, times."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from helpers.bad_input import assert_one_line
from helpers.command import Commands, commands_in
from helpers.serving import KEEPS_ON, NAME, Server, start_server

ASK = {"model": NAME, "prompt": "def main", "max_tokens": 2}


@pytest.fixture(scope="module")
def keyed(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("keyed")
    (directory / "keys").write_text("# ours\nfirst-key\nsecond-key\n")
    options = ("--api-key-file", str(directory / "keys"), "--requests-per-minute", "30")
    with commands_in(directory) as commands:
        yield start_server(commands, served_model, *options, GLMFORGE_API_KEYS="third-key")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer first-kez"}, 401),
        ({"Authorization": "Bearer first-key-"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic first-key"}, 401),
        ({"x-api-key": "\u00e9".encode("latin-1")}, 401),
        ({"Authorization": "Bearer first-key"}, 200),
        ({"authorization": "bearer second-key"}, 200),
        ({"x-api-key": "third-key"}, 200),
    ],
)
def test_keys(keyed: Server, headers: dict[str, str], status: int) -> None:
    for path, body in (("/v1/completions", ASK), ("/v1/models", None), ("/metrics", None)):
        assert keyed.ask(path, body, headers=headers).status_code == status, path
    assert keyed.ask("/health").status_code == 200
    assert "-key" not in keyed.started.output.replace("API key required", "")


def test_errors_have_the_apis_form(keyed: Server) -> None:
    assert keyed.ask("/v1/completions", ASK).json()["error"]["type"] == "authentication_error"
    error = keyed.ask("/v1/messages", {}).json()
    assert (error["type"], error["error"]["type"]) == ("error", "authentication_error")


def test_requests_per_minute(keyed: Server) -> None:
    headers = {"x-api-key": "second-key"}
    answers = [keyed.ask("/v1/models", headers=headers) for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["Retry-After"]) >= 1
    assert keyed.ask("/v1/models", headers={"x-api-key": "third-key"}).status_code == 200, "another key's own"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "a@b"])
def test_names_of_other_hosts(server: Server, host: str) -> None:
    answer = server.ask("/v1/models", headers={"Host": host})
    assert answer.status_code == 403 or (host == "" and answer.status_code == 400)
    assert server.ask("/v1/models", headers={"Host": "LOCALHOST:1"}).status_code == 200


def test_web_pages_of_others(server: Server, start: Callable[..., Server]) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://["):
        answer = server.ask("/v1/completions", ASK, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert server.ask("/v1/completions", ASK, headers={"Origin": server.url}).status_code == 200
    shared = start("--allow-origin", "https://ours.example")
    answer = shared.ask("/v1/completions", ASK, headers={"Origin": "https://ours.example"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://ours.example"
    assert shared.ask("/v1/completions", ASK, headers={"Origin": "https://evil.example"}).status_code == 403


def test_beyond_this_machine_a_key_is_needed(commands: Commands, served_model: Path, tmp_path: Path) -> None:
    started = commands.start("serve", str(served_model), "--host", "0.0.0.0", "--port", "0")
    assert_one_line((started.wait(), started.output), "0.0.0.0", "--api-key-file", "--public")
    (tmp_path / "empty").write_text("# none\n")
    started = commands.start("serve", str(served_model), "--api-key-file", str(tmp_path / "empty"))
    assert_one_line((started.wait(), started.output), "empty", "no API key")


def test_a_port_that_is_taken(commands: Commands, served_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = commands.start("serve", str(served_model), "--port", str(port))
        assert_one_line((started.wait(), started.output), port, "--port")


def test_bodies_that_are_too_large(start: Callable[..., Server]) -> None:
    server = start("--max-body-mib", "1", "--max-prompt-tokens", "50")
    large = b'{"model": "' + b"x" * (2 << 20) + b'"}'
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    host = f"Host: 127.0.0.1:{address[1]}\r\n".encode()
    for head, body in (
        (b"Content-Length: %d\r\n" % len(large), large[:100]),
        (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n" % (len(large), large)),
    ):
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\n" + host + head + b"\r\n" + body)
            assert connection.recv(100).startswith(b"HTTP/1.1 413")
    answer = server.complete(prompt="def main " * 100, max_tokens=1)
    assert answer.status_code == 400
    assert "50" in answer.json()["error"]["message"]
    assert server.complete(max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    ],
)
def test_malformed_http(server: Server, sent: bytes) -> None:
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=60) as connection:
        answer = b""
        with suppress(ConnectionError):  # it may be closed before all has been sent
            connection.sendall(sent)
            answer = connection.recv(100)
    assert answer == b"" or re.match(rb"HTTP/1.1 4\d\d", answer)
    assert server.ask("/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"model": NaN}', b"[" * 100_000, b'{"a":' * 5_000, b"9" * 5_000],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_bodies_that_are_no_request(server: Server, path: str, body: bytes) -> None:
    answer = httpx2.post(server.url + path, content=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_full_queue(start: Callable[..., Server]) -> None:
    server = start("--max-sequences", "1", "--max-queued", "1")
    with server.streaming(**KEEPS_ON) as running:
        next(running)
        waiting = threading.Thread(target=lambda: server.complete(max_tokens=1))
        waiting.start()
        server.wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1)
        answer = server.complete(max_tokens=1)
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert server.ask("/v1/messages", {**ASK, "messages": [{"role": "user", "content": "x"}]}).status_code == 429
    waiting.join()
    assert server.complete(max_tokens=1).status_code == 200


def test_time_is_limited(server: Server, start: Callable[..., Server]) -> None:
    assert server.complete(**KEEPS_ON, timeout=0.2).status_code == 504
    with server.streaming(**KEEPS_ON, timeout=0.5) as lines:
        *_, error, done = lines
    assert '"error"' in error
    assert done == "data: [DONE]"
    limited = start("--timeout", "0.5")
    assert limited.complete(**KEEPS_ON).status_code == 504
    server.wait_for_idle()
