"""Whoever gets no answer from the store is told so within the limit."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from glmforge.errors import HostError
from glmforge_ops.health.collectives.slow.bounded_store import BoundedStore


class Silent(dist.HashStore):
    """Answers nothing that is added up until it is released, as a store whose machine is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def add(self, key: str, amount: int) -> int:
        self.released.wait()
        return super().add(key, amount)


@pytest.fixture
def silent() -> Iterator[Silent]:
    store = Silent()
    yield store
    store.released.set()


def test_it_answers_as_the_store_does() -> None:
    store = BoundedStore(dist.HashStore(), 30)
    store.set("key", "value")
    assert store.get("key") == "value"
    assert [store.add("number", 2), store.add("number", 0)] == [2, 2]
    assert store.check(["key", "number"])
    assert not store.check(["key", "other"])


def test_no_answer_is_told_and_nothing_is_asked_again(silent: Silent) -> None:
    store = BoundedStore(silent, 0.1)
    with pytest.raises(HostError, match="cannot be reached from this host any more"):
        store.add("number", 1)
    silent.released.set()
    with pytest.raises(HostError, match="cannot be reached"):
        store.check(["key"])


def test_a_key_that_does_not_come_is_told() -> None:
    inner = dist.HashStore()
    inner.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(HostError, match="rank 0, which leads the search, has ended"):
        BoundedStore(inner, 30).get("key")
