"""Parts of the server in one process: access, counts, budgets of thoughts, steps that fail."""

import asyncio
import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.deploy.serve.access import Access, Later, is_loopback, read_keys
from glmforge.deploy.serve.app import make_app
from glmforge.deploy.serve.page import page_routes
from glmforge.deploy.serve.run import listening
from glmforge.deploy.serve.service import Limits, ServedModel, Service
from glmforge.deploy.serve.thoughts import Thoughts
from glmforge.errors import GlmforgeError
from glmforge.generate.answer import Update
from glmforge.generate.engine import Engine
from glmforge.generate.params import SamplingParams
from glmforge.model import GlmMoe
from glmforge.protocol.request import ApiError, Ask
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def engine(tiny_data: TinyData) -> Engine:
    model = GlmMoe(tiny_config())
    randomize_(model)
    return Engine(model, tokenizer=Tokenizer.load(tiny_data.tokenizer))


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("example.com", False), ("", False)],
)  # fmt: skip
def test_addresses_of_this_machine(host: str, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours


def test_requests_of_a_minute() -> None:
    access = Access(requests_per_minute=6)
    for _ in range(6):
        access.count("a", now=100.0)
    with pytest.raises(Later) as refused:
        access.count("a", now=104.0)
    assert (refused.value.status, refused.value.seconds) == (429, pytest.approx(6.0))
    access.count("b", now=104.0)
    access.count("a", now=110.0)
    with pytest.raises(Later):
        access.count("a", now=110.0)


def test_only_digests_of_keys_are_kept() -> None:
    access = Access(["sesame"])
    assert "sesame" not in repr(vars(access))
    assert access.caller({"authorization": "Bearer sesame"}) == access.caller({"x-api-key": "sesame"})


def test_keys_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLMFORGE_API_KEYS", "one,two three\n")
    assert read_keys(None) == ["one", "two", "three"]
    monkeypatch.setenv("GLMFORGE_API_KEYS", " ")
    with pytest.raises(GlmforgeError, match="contains no key"):
        read_keys(None)


def asked(budget: int | None = None, **settings: Any) -> Ask:
    return Ask(prompt=(5, 6, 7), params=SamplingParams(**settings), model="m", reasoning_budget=budget)


def test_a_thought_is_closed_where_its_budget_ends(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    end = tokenizer.special_id("</think>")
    ask = asked(2, max_new_tokens=10, min_new_tokens=4, stop=("x",), seed=3, num_samples=2)
    thoughts = Thoughts(ask, tokenizer)
    first = thoughts.first_params(1)
    assert (first.max_new_tokens, first.stop, first.seed, first.num_samples) == (2, (), 4, 1)
    assert set(first.stop_ids) == {end, *tokenizer.stop_ids}
    assert thoughts.take(Update(0, 1, 8, None, "a")) == ([Update(0, 1, 8, None, "a")], None)
    told, following = thoughts.take(Update(0, 1, 9, "length", "b"))
    assert [(one.token, one.text, one.finished) for one in told] == [(9, "b", None), (end, "</think>", None)]
    assert following is not None
    assert following[0] == [5, 6, 7, 8, 9, end]
    assert following[1] == replace(ask.params, max_new_tokens=7, min_new_tokens=1, seed=4, num_samples=1)
    told, following = thoughts.take(Update(0, 1, 4, "stop", "c", stop=4))
    assert (told[0].finished, following) == ("stop", None), "that is the answer's end"


@pytest.mark.parametrize(
    ("last", "longest", "finished", "goes_on"),
    [
        (Update(0, 0, 477, "stop", "", stop=477), 10, "stop", False),  # ended within the thought
        (Update(0, 0, 9, "length", "b"), 1, "length", False),  # no room for anything else
        (Update(0, 0, 9, "length", "b"), 2, "length", False),  # room for the end of the thought alone
        (Update(0, 0, None, "cancelled"), 10, "cancelled", False),
    ],
)
def test_thoughts_that_nothing_follows(
    engine: Engine, last: Update, longest: int, finished: str, goes_on: bool
) -> None:
    assert engine.tokenizer is not None
    thoughts = Thoughts(asked(1, max_new_tokens=longest), engine.tokenizer)
    told, following = thoughts.take(last)
    assert (told[-1].finished, following is not None) == (finished, goes_on)


def test_a_thought_that_the_model_closes(engine: Engine) -> None:
    assert engine.tokenizer is not None
    end = engine.tokenizer.special_id("</think>")
    told, following = Thoughts(asked(5, max_new_tokens=9), engine.tokenizer).take(
        Update(0, 0, end, "stop", "held back", stop=end)
    )
    assert [(one.token, one.text, one.finished, one.stop) for one in told] == [(end, "held back</think>", None, None)]
    assert following is not None
    assert following[0] == [5, 6, 7, end]


def test_a_failed_step_answers_its_requests_and_the_server_lives_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert engine.tokenizer is not None
    service = Service(engine, Limits())
    app = make_app(service, ServedModel(engine.tokenizer, ("m",), 256, 16), Access(hosts=None))
    run = engine.runner.run

    def fail(_: object) -> torch.Tensor:
        raise RuntimeError("secret path /x")

    async def three() -> list[httpx2.Response]:
        body = {"model": "m", "prompt": "def main", "max_tokens": 2}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            monkeypatch.setattr(engine.runner, "run", fail)
            failed = await client.post("/v1/completions", json=body)
            streamed = await client.post("/v1/completions", json=body | {"stream": True})
            monkeypatch.setattr(engine.runner, "run", run)
            return [failed, streamed, await client.post("/v1/completions", json=body)]

    caplog.set_level(logging.CRITICAL)
    failed, streamed, whole = asyncio.run(three())
    assert failed.status_code == 500
    assert failed.json()["error"]["type"] == "server_error"
    assert '"error"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert "secret" not in failed.text + streamed.text
    assert whole.status_code == 200, whole.text
    assert engine.is_idle
    engine.check()


def test_a_reader_that_is_too_far_behind(engine: Engine) -> None:
    async def behind() -> None:
        ask = asked(max_new_tokens=60, banned_tokens=(476, 482, 485))
        async with Service(engine, Limits(unread_updates=5)).run(ask, "a", None) as running:
            steps = running.answer._engine._steps
            assert steps is not None
            await steps
            with pytest.raises(ApiError, match="were not read"):
                async for _ in running.updates():
                    pass

    asyncio.run(behind())
    assert engine.is_idle


def test_files_of_the_page(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there and of a known type, with headers that allow nothing from elsewhere; nothing beside it."""
    assert engine.tokenizer is not None
    page = tmp_path / "page"
    (page / "vendor").mkdir(parents=True)
    for name in ("index.html", "app.js", "vendor/x.css", "vendor/notes.py"):
        (page / name).write_text(f"content of {name}")
    (tmp_path / "secret.html").write_text("secret")
    monkeypatch.setattr("glmforge.deploy.serve.app.page_routes", lambda: page_routes(page))
    app = make_app(Service(engine, Limits()), ServedModel(engine.tokenizer, ("m",), 256, 16), Access(["key"], None))

    async def get(paths: list[str]) -> list[httpx2.Response]:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://test") as client:
            return [await client.get(path) for path in paths]

    found = asyncio.run(get(["/", "/index.html", "/app.js", "/vendor/x.css"]))
    assert [one.status_code for one in found] == [200] * 4
    assert found[0].text == "content of index.html"
    assert [one.headers["content-type"].partition(";")[0] for one in found[2:]] == ["text/javascript", "text/css"]
    for one in found:
        assert one.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert one.headers["x-content-type-options"] == "nosniff"
    hidden = ["/vendor/notes.py", "/../secret.html", "/%2e%2e/secret.html", "/vendor/..%2f..%2fsecret.html", "/vendor/"]
    assert {one.status_code for one in asyncio.run(get(hidden))} == {401}, "a key is asked for, as for all else"


def test_limits_of_a_request(engine: Engine) -> None:
    async def ask(one: Ask) -> None:
        async with Service(engine, Limits(prompt_tokens=3, samples=4)).run(one, "a", None) as running:
            async for _ in running.updates():
                pass

    asyncio.run(ask(asked(max_new_tokens=1, num_samples=4)))
    with pytest.raises(ApiError, match="more than 4"):
        asyncio.run(ask(asked(max_new_tokens=1, num_samples=5)))
    with pytest.raises(ApiError, match="more than 3 tokens"):
        asyncio.run(ask(replace(asked(max_new_tokens=1), prompt=(1, 2, 3, 4))))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_replies_are_sent_at_once(host: str) -> None:
    """Without TCP_NODELAY the second part of a reply waits for the client's acknowledgment of the first: 40 ms."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listening(host, 0)
        async with await asyncio.start_server(note, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            writer.close()
            return await found

    assert asyncio.run(option())
