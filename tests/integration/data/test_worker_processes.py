"""Encoding and reading in other processes."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from glmforge.data.corpus.document import Document
from glmforge.data.stream.phase import PhaseStream, Source
from glmforge.data.tokens import tokenize
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.shards import TokenShard
from glmforge.data.tokens.tokenize import tokenize_corpus
from glmforge.errors import DataError

DOCUMENTS = [Document(str(i), f"document {i}: " + "words and numbers, " * (i % 7), "memory") for i in range(200)]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "t"
    train_tokenizer([document.text for document in DOCUMENTS], 300, path)
    return path


def test_bytes_do_not_depend_on_the_number_of_workers(tokenizer_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 500)
    for workers in (1, 2, 3):
        tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / f"w{workers}", num_workers=workers)
    for suffix in ("bin", "idx", "json"):
        first = (tmp_path / f"w1.{suffix}").read_bytes()
        assert all((tmp_path / f"w{workers}.{suffix}").read_bytes() == first for workers in (2, 3))


def test_a_dead_worker_is_an_error_and_leaves_nothing(tokenizer_dir, tmp_path, monkeypatch):
    def kill_workers(progress):
        for worker in multiprocessing.active_children():
            worker.kill()

    monkeypatch.setattr(tokenize, "BATCH_CHARACTERS", 100)
    with pytest.raises(DataError, match="an encoding process died"):
        tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s", num_workers=2, progress=kill_workers)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_reads_the_same_in_a_spawned_process(tokenizer_dir, tmp_path):
    tokenize_corpus(DOCUMENTS, tokenizer_dir, tmp_path / "s")
    stream = PhaseStream([Source("s", TokenShard(tmp_path / "s"))], seq_len=32, batch_size=4, vocab_size=300)
    reader = DataLoader(
        _Steps(stream), batch_size=None, num_workers=1, multiprocessing_context="spawn", prefetch_factor=2
    )
    batches = list(reader)
    assert len(batches) == 3
    assert all(torch.equal(batch.ids_BS, stream.batch(step).ids_BS) for step, batch in enumerate(batches))


class _Steps(torch.utils.data.Dataset):
    def __init__(self, stream: PhaseStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return 3

    def __getitem__(self, step: int):
        return self.stream.batch(step)
