"""A small tokenizer in a server's context."""

import pytest

from glmforge.data.tokens.tokenizer import Tokenizer
from helpers.replies import Served
from helpers.tiny_data import TinyData


@pytest.fixture(scope="session")
def served(tiny_data: TinyData) -> Served:
    return Served(Tokenizer.load(tiny_data.tokenizer))


@pytest.fixture(scope="session")
def tokenizer(served: Served) -> Tokenizer:
    return served.tokenizer
