"""A small tokenizer, trained once, and token shards made of plain numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenizer import Tokenizer

TEXTS = [
    "The forge is hot, and the smith's hammer falls 1234 times; isn't it loud?\n\n  def strike(iron):\n",
    "Größe, naïve, 你好世界, привет, 🙂🙃 and a tab\tand\r\nline ends.\n\n\n",
    "return [x for x in range(100) if x % 2 == 0]  # even numbers, the even numbers\n",
] * 3
VOCAB_SIZE = 360


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer") / "small"
    train_tokenizer(TEXTS, VOCAB_SIZE, directory)
    return directory


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_dir)


@pytest.fixture
def make_shard(tmp_path: Path) -> Callable[..., TokenShard]:
    """Write documents of ids; `make_shard([[1, 2, 9], [3, 9]])`."""

    def make(documents: Sequence[Sequence[int]], name: str = "shard", vocab_size: int = 1000) -> TokenShard:
        with ShardWriter(tmp_path / name, vocab_size) as writer:
            tokens = np.concatenate([np.asarray(document) for document in documents])
            writer.add(tokens, np.array([len(document) for document in documents]))
            writer.finish("fingerprint-of-a-test", "test", num_text_bytes=4 * len(tokens))
        return TokenShard(tmp_path / name)

    return make
