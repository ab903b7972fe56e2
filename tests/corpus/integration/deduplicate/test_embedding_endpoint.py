"""Embeddings from a real HTTP server on loopback that answers, refuses, and breaks."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from glmforge.data.documents.batch import DocumentBatch
from glmforge.errors import DataError
from glmforge_corpus.deduplicate.embedder import EmbedderOptions
from glmforge_corpus.deduplicate.embedding_endpoint import EndpointEmbedder

Answer = tuple[int, Any]


@contextmanager
def server(answer: Callable[[int, dict[str, Any]], Answer]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers request number i with `answer(i, body)`; gives its URL and the requests it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body | {"path": self.path, "key": self.headers["Authorization"]})
            status, value = answer(len(requests) - 1, body)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/v1/embeddings", requests
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def vectors_of(body: dict[str, Any]) -> Any:
    """[length, 1] of each text, in the wrong order."""
    rows = [{"index": i, "embedding": [len(text), 1]} for i, text in enumerate(body["input"])]
    return {"data": rows[::-1]}


def embed(url: str, texts: list[str], **options: Any) -> np.ndarray:
    embedder = EndpointEmbedder(EmbedderOptions(embedder=url, model="m", **options), first_wait=0)
    return embedder.embed(DocumentBatch.from_columns([""] * len(texts), texts, ""))


def test_texts_go_out_in_batches_and_come_back_in_order() -> None:
    texts = ["a" * i for i in range(1, 8)]
    with server(lambda _, body: (200, vectors_of(body))) as (url, requests):
        vectors = embed(url, texts, batch_size=3)
    assert [len(request["input"]) for request in requests] == [1, 3, 3, 1]  # the first asks for the width
    assert {(request["model"], request["path"]) for request in requests} == {("m", "/v1/embeddings")}
    assert np.allclose(vectors[:, 0] / vectors[:, 1], range(1, 8), rtol=1e-5)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(status: int) -> None:
    with server(lambda i, body: (200, vectors_of(body)) if i >= 2 else (status, {})) as (url, requests):
        assert embed(url, ["abc"]).shape == (1, 2)
    assert len(requests) == 4


def test_what_does_not_pass_ends_with_the_number_of_attempts() -> None:
    with (
        server(lambda i, body: (503, {})) as (url, requests),
        pytest.raises(DataError, match=r"no answer after 3 attempts.*Run it again"),
    ):
        embed(url, ["abc"], retries=2)
    assert len(requests) == 3


def test_a_server_that_is_not_there_is_told() -> None:
    with server(lambda i, body: (200, {})) as (url, _):
        pass
    with pytest.raises(DataError, match="no answer after 2 attempts"):
        embed(url, ["abc"], retries=1, timeout=5)


def test_a_refusal_is_not_repeated_and_told_in_the_servers_words() -> None:
    with (
        server(lambda i, body: (400, {"error": "model m unknown"})) as (url, requests),
        pytest.raises(DataError, match=r"status 400: .*model m unknown"),
    ):
        embed(url, ["abc"])
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>", r"no answer after 7 attempts \(200 no such reply: <html>\)"),
        ({"data": []}, "1 texts sent, but received"),
        ({"data": [{"index": 0, "embedding": [float("nan")]}]}, "1 texts sent"),
        ({"vectors": 1}, "not an embeddings response"),
    ],
)
def test_answers_that_are_none_are_refused(answer: Any, says: str) -> None:
    with server(lambda i, body: (200, answer)) as (url, _), pytest.raises(DataError, match=says):
        embed(url, ["abc"])


def test_a_change_of_width_is_refused() -> None:
    wide = {"data": [{"index": 0, "embedding": [1, 2, 3]}]}
    with (
        server(lambda i, body: (200, vectors_of(body) if i == 0 else wide)) as (url, _),
        pytest.raises(DataError, match="vectors of 3 numbers after 2"),
    ):
        embed(url, ["abc"])


def test_texts_are_cut_between_characters_and_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBEDDINGS_KEY", "secret")
    with server(lambda _, body: (200, vectors_of(body))) as (url, requests):
        embed(url, ["ééé"], max_bytes=6, prefix="q:", api_key_variable="EMBEDDINGS_KEY")
    assert requests[-1]["input"] == ["q:éé"]
    assert requests[-1]["key"] == "Bearer secret"
    with pytest.raises(DataError, match="NO_SUCH_KEY is not set"):
        embed(url, ["a"], api_key_variable="NO_SUCH_KEY")
