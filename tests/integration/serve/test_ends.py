"""How answers and servers end: clients that vanish, aborts, drains, kills."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from helpers import core_only
from helpers.serving import KEEPS_ON, NAME, Server

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}


def test_a_client_that_vanishes_costs_no_further_step(server: Server) -> None:
    steps = server.metric("glmforge_engine_steps_total")
    for stream in (True, False):
        body = json.dumps({"model": NAME, "prompt": "def main", "stream": stream, **KEEPS_ON}).encode()
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(head + body)
            server.wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
        server.wait_for_idle()
    assert server.metric("glmforge_engine_steps_total") - steps < KEEPS_ON["max_tokens"], "either was cancelled"
    made = server.metric("vllm:generation_tokens_total")
    assert server.complete(max_tokens=3, ignore_eos=True).status_code == 200
    assert server.metric("vllm:generation_tokens_total") == made + 3


def test_a_client_that_does_not_read(server: Server) -> None:
    """It holds up nobody."""
    body = json.dumps({"model": NAME, "prompt": "def main", "stream": True, **KEEPS_ON, "logprobs": 5}).encode()
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address)
        connection.sendall(head + body)
        server.wait_until(lambda: server.metric("vllm:num_requests_running") == 1)
        assert server.complete(max_tokens=4).status_code == 200
    server.wait_for_idle()
    assert server.ask("/health").status_code == 200


def test_abort_by_id(server: Server) -> None:
    for settings, headers in (({"request_id": "one"}, None), ({}, {"X-Request-Id": "one"})):
        with server.streaming(**KEEPS_ON, **settings, headers=headers) as lines:
            next(lines)
            assert server.ask("/abort", {"id": "other"}).status_code == 404
            assert server.ask("/abort", {"id": "one"}).json() == {"id": "one", "aborted": 1}
            assert list(lines)[-1] == "data: [DONE]"
    assert server.ask("/abort", {"id": "one"}).status_code == 404
    assert server.ask("/abort", {"id": 3}).status_code == 400
    server.wait_for_idle()


def test_higher_priorities_wait(start: Callable[..., Server]) -> None:
    """Lower numbers go first, whatever came first."""
    server = start("--max-sequences", "1")
    order: list[str] = []

    def ask(name: str, priority: int) -> None:
        # Long: what is answered second comes so much later that these threads cannot tell it first.
        assert server.complete(max_tokens=400, ignore_eos=True, priority=priority).status_code == 200
        order.append(name)

    with server.streaming(**KEEPS_ON) as running:
        next(running)
        threads = []
        for number, (name, priority) in enumerate((("late", 5), ("early", -1)), 1):
            threads.append(threading.Thread(target=ask, args=(name, priority)))
            threads[-1].start()
            server.wait_until(lambda number=number: server.metric("vllm:num_requests_waiting") == number)
    for thread in threads:
        thread.join()
    assert order == ["early", "late"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_answers_are_finished(start: Callable[..., Server], number: int) -> None:
    server = start("--drain-seconds", "100")
    with httpx2.Client(base_url=server.url, timeout=60) as kept:
        kept.get("/health")
        with server.streaming(max_tokens=2_000, ignore_eos=True) as lines:
            first = next(lines)
            os.kill(server.pid, number)
            server.wait_until(lambda: kept.get("/health").status_code == 503)
            refused = kept.post("/v1/completions", json={"model": NAME, "prompt": "x"})
            assert (refused.status_code, "Retry-After" in refused.headers) == (503, True)
            rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert "error" not in rest[-2]
    assert sum(map(_num_characters, [first, *rest[:-1]])) > 0
    assert server.started.wait() == 0


def test_what_takes_too_long_ends_with_an_error(start: Callable[..., Server]) -> None:
    server = start("--drain-seconds", "0")
    with server.streaming(**KEEPS_ON) as lines:
        next(lines)
        os.kill(server.pid, signal.SIGTERM)
        *_, error, done = lines
    assert "shutting down" in error
    assert done == "data: [DONE]"
    assert server.started.wait() == 0


def test_a_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start("--drain-seconds", "1000")
    with server.streaming(**KEEPS_ON) as lines:
        next(lines)
        os.kill(server.pid, signal.SIGINT)
        server.wait_until(lambda: server.ask("/health").status_code == 503)
        os.kill(server.pid, signal.SIGINT)
        assert server.started.wait() == 128 + signal.SIGINT


def test_nothing_but_the_core_is_needed(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(**core_only.environment(tmp_path))
    assert server.complete(max_tokens=2).status_code == 200
    assert server.ask("/v1/messages", {**CHAT, "max_tokens": 2}).status_code == 200
    assert server.ask("/v1/chat/completions", CHAT | {"max_tokens": 2}).status_code == 200
    os.kill(server.pid, signal.SIGTERM)
    assert server.started.wait() == 0


def test_killed_and_restarted_under_load(start: Callable[..., Server]) -> None:
    """Each answer is whole or the connection breaks; the next server gives the same."""
    server = start()
    expected = server.complete(max_tokens=300, ignore_eos=True, temperature=0).json()["choices"][0]["text"]
    outcomes: list[Any] = []

    def ask() -> None:
        while True:
            try:
                answer = server.complete(max_tokens=300, ignore_eos=True, temperature=0)
            except httpx2.HTTPError as error:
                outcomes.append(error)
                return
            outcomes.append(answer.json()["choices"][0]["text"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    server.wait_until(lambda: len(outcomes) > 8)
    os.kill(server.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert {text for text in outcomes if isinstance(text, str)} == {expected}
    again = start()
    assert again.complete(max_tokens=300, ignore_eos=True, temperature=0).json()["choices"][0]["text"] == expected


def _num_characters(line: str) -> int:
    return len(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
