"""How often a client asks, how long it waits, and which URLs it takes."""

import asyncio

import pytest

from glmforge.endpoint import Attempt, ask_again, backoff, retry_after, url_fault


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7),
        ("0.5", 0.5),
        ("-3", 0),
        ("1e9", 600),
        ("nan", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90),
    ],
)
def test_retry_after(header, seconds):
    assert retry_after(header, now=10.0) == seconds


def test_backoff_doubles_with_jitter_and_has_a_ceiling():
    waits = [backoff(attempt, "key", 1.0) for attempt in range(1, 12)]
    for attempt, wait in enumerate(waits, start=1):
        full = min(2 ** (attempt - 1), 60)
        assert full / 2 <= wait <= full
    assert backoff(1, "key", 1.0) != backoff(1, "other", 1.0)


@pytest.mark.parametrize(
    ("outcomes", "num_attempts"),
    [(["done", "lost"], 1), (["refused", "done"], 1), (["unpaid", "lost", "done"], 3), (["lost"] * 4, 3)],
    ids=["done", "refused", "failures first", "never done"],
)
def test_attempts_end_when_one_is_done_or_refused_and_after_the_last(outcomes, num_attempts):
    made = []

    async def ask() -> Attempt:
        made.append(Attempt(outcomes[len(made)]))
        return made[-1]

    assert asyncio.run(ask_again(ask, 3, 0.001, "key")) is made[-1]
    assert len(made) == num_attempts


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "https://host/v1", "http://[::1]:8000"])
def test_urls_of_servers(url):
    assert url_fault(url) is None


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://[::1", "http://u:secret@host", "http://h?k=secret"]
)
def test_what_is_no_url_of_a_server_or_holds_a_secret_is_told_without_it(url):
    fault = url_fault(url)
    assert fault
    assert "secret" not in fault
