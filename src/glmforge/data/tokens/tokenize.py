"""A corpus to a token shard, on all cores.

Documents go to worker processes in batches of about a megabyte and come back in order, so the shard has the
same bytes for any number of workers. Only a few batches are under way at a time, so a corpus of any size
passes through constant memory. Processes rather than the library's own threads: those scale poorly, as they
share one cache.

Workers are spawned, not forked, which is safe next to threads and on every platform. A program that calls
this with more than one worker therefore needs the usual `if __name__ == "__main__":` guard.
"""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmforge.data.corpus.document import Document
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import ShardInfo
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

BATCH_CHARACTERS = 1 << 20
BATCHES_PER_WORKER = 2


@dataclass(frozen=True)
class Progress:
    """How far a `tokenize_corpus` is."""

    num_documents: int
    num_tokens: int
    num_text_bytes: int


@dataclass(frozen=True)
class _Encoded:
    """Documents' ids end to end, each document ended by `<|endoftext|>`."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    num_text_bytes: int


def tokenize_corpus(
    documents: Iterable[Document],
    tokenizer_dir: str | Path,
    prefix: str | Path,
    *,
    num_workers: int = 1,
    progress: Callable[[Progress], None] | None = None,
    source: str = "",
    overwrite: bool = False,
) -> ShardInfo:
    """Encode `documents` into the token shard `prefix`.

    Args:
        documents: read once, in order.
        tokenizer_dir: directory of the tokenizer.
        prefix: path of the shard without suffix.
        num_workers: processes that encode; 1 encodes in this one.
        progress: called after every batch with the totals so far.
        source: where the text came from, kept in the shard's description.
        overwrite: replace a shard of that name.

    Raises:
        DataError: the corpus is empty or unreadable, the shard exists, a worker died, the disk is full. No
            shard is left behind then.
    """
    if num_workers < 1:
        raise DataError(f"num_workers {num_workers}: must be at least 1")
    tokenizer = Tokenizer.load(tokenizer_dir)
    num_text_bytes = 0
    with ShardWriter(prefix, tokenizer.vocab_size, overwrite=overwrite) as writer:
        for encoded in _encode(_batches(documents), Path(tokenizer_dir), num_workers):
            writer.add(encoded.tokens, encoded.lengths)
            num_text_bytes += encoded.num_text_bytes
            if progress is not None:
                progress(Progress(writer.num_documents, writer.num_tokens, num_text_bytes))
        return writer.finish(tokenizer.fingerprint, source, num_text_bytes)


def _batches(documents: Iterable[Document]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for document in documents:
        batch.append(document.text)
        num_characters += len(document.text)
        if num_characters >= BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _encode(batches: Iterable[list[str]], tokenizer_dir: Path, num_workers: int) -> Iterator[_Encoded]:
    if num_workers == 1:
        tokenizer = Tokenizer.load(tokenizer_dir)
        yield from (_encode_batch(tokenizer, batch) for batch in batches)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, spawn, _start_worker, (tokenizer_dir,)) as pool:
        try:
            yield from _in_order(pool, batches, num_workers * BATCHES_PER_WORKER)
        except BrokenProcessPool as error:
            raise DataError(
                "an encoding process died, perhaps for want of memory (use fewer workers) or of an "
                "'if __name__ == \"__main__\"' guard in the calling script (add it)"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(pool: ProcessPoolExecutor, batches: Iterable[list[str]], num_under_way: int) -> Iterator[_Encoded]:
    under_way: deque[Future[_Encoded]] = deque()
    for batch in batches:
        under_way.append(pool.submit(_encode_in_worker, batch))
        if len(under_way) >= num_under_way:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


_worker_tokenizer: Tokenizer
"""A worker's own, set when it starts."""


def _start_worker(tokenizer_dir: Path) -> None:
    global _worker_tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # this process is the parallelism
    _worker_tokenizer = Tokenizer.load(tokenizer_dir)


def _encode_in_worker(texts: list[str]) -> _Encoded:
    return _encode_batch(_worker_tokenizer, texts)


def _encode_batch(tokenizer: Tokenizer, texts: list[str]) -> _Encoded:
    end = tokenizer.end_of_text_id
    encoded = tokenizer.encode_batch(texts)
    lengths = np.array([len(ids) + 1 for ids in encoded], dtype=np.int32)
    tokens = np.full(int(lengths.sum()), end, dtype=np.int32)
    starts = np.cumsum(lengths) - lengths
    for start, ids in zip(starts, encoded, strict=True):
        tokens[start : start + len(ids)] = ids
    return _Encoded(tokens, lengths, sum(len(text.encode()) for text in texts))
