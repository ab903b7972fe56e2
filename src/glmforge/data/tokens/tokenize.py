"""A corpus to a token shard, on all cores.

Documents go to worker processes in batches of about a megabyte, or as the name of a row group that the worker reads
itself, and come back in order (`glmforge.data.worker_pool`), so the shard has the same bytes for any number of
workers.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from glmforge.data.documents.document import Document
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import ShardInfo
from glmforge.data.tokens.text_chunks import CHUNK_CHARACTERS, Selection, TextChunk, Work, chunks_of
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.worker_pool import in_processes
from glmforge.errors import DataError

BATCH_CHARACTERS = CHUNK_CHARACTERS


@dataclass(frozen=True)
class EncodingProgress:
    """How far a `tokenize_corpus` is."""

    num_documents: int
    num_tokens: int
    num_text_bytes: int


@dataclass(frozen=True)
class _Encoded:
    """Documents' ids end to end, each document ended by `<|endoftext|>`."""

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    num_text_bytes: int


@dataclass(frozen=True)
class _Encoder:
    """What a worker needs to know; the tokenizer is its own.

    Attributes:
        tokenizer_dir: of the tokenizer.
        verify: share of the documents that are encoded a second time, by `tokenizers`.
    """

    tokenizer_dir: Path
    verify: float


def tokenize_corpus(
    documents: Iterable[Document],
    tokenizer_dir: str | Path,
    prefix: str | Path,
    *,
    num_workers: int = 1,
    progress: Callable[[EncodingProgress], None] | None = None,
    source: str = "",
    overwrite: bool = False,
    selection: Selection | None = None,
    verify: float = 0.0,
) -> ShardInfo:
    """Encode `documents` into the token shard `prefix`.

    Args:
        documents: read once, in order. Of a `Corpus`, workers read shards of documents themselves.
        tokenizer_dir: directory of the tokenizer.
        prefix: path of the shard without suffix.
        num_workers: processes that encode; 1 encodes in this one.
        progress: called after every batch with the totals so far.
        source: where the text came from, kept in the shard's description.
        overwrite: replace a shard of that name.
        selection: which documents take part, by id; all if None.
        verify: share of the documents that are encoded a second time by `tokenizers`, the definition of what ids are.

    Raises:
        DataError: the corpus is empty or unreadable, the shard exists, an id differs from the library's, a worker
            died, the disk is full. No shard is left behind then.
    """
    if num_workers < 1:
        raise DataError(f"num_workers {num_workers}: must be at least 1")
    if not 0 <= verify <= 1:
        raise DataError(f"verify {verify}: must be between 0 and 1")
    tokenizer = Tokenizer.load(tokenizer_dir)
    num_text_bytes = 0
    work = chunks_of(documents, selection, BATCH_CHARACTERS)
    with ShardWriter(prefix, tokenizer.vocab_size, overwrite=overwrite) as writer:
        for encoded in _encode(work, tokenizer, _Encoder(Path(tokenizer_dir), verify), num_workers):
            writer.add(encoded.tokens, encoded.lengths)
            num_text_bytes += encoded.num_text_bytes
            if progress is not None:
                progress(EncodingProgress(writer.num_documents, writer.num_tokens, num_text_bytes))
        return writer.finish(tokenizer.fingerprint, source, num_text_bytes)


def _encode(work: Iterable[Work], tokenizer: Tokenizer, encoder: _Encoder, num_workers: int) -> Iterator[_Encoded]:
    if num_workers == 1:
        yield from (_encode_chunk(tokenizer, unit.read(), encoder.verify) for unit in work)
        return
    yield from in_processes(_encode_in_worker, work, num_workers, _start_worker, encoder)


_worker: tuple[Tokenizer, float]
"""A worker's own, set when it starts."""


def _start_worker(encoder: _Encoder) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # this process is the parallelism
    _worker = Tokenizer.load(encoder.tokenizer_dir), encoder.verify


def _encode_in_worker(work: Work) -> _Encoded:
    tokenizer, verify = _worker
    return _encode_chunk(tokenizer, work.read(), verify)


def _encode_chunk(tokenizer: Tokenizer, chunk: TextChunk, verify: float) -> _Encoded:
    tokens, lengths = tokenizer.encode_utf8(chunk.data, chunk.offsets, end_of_text=True)
    if verify:
        _verify(tokenizer, chunk, tokens, lengths, verify)
    return _Encoded(tokens, lengths, chunk.num_bytes)


def _verify(
    tokenizer: Tokenizer, chunk: TextChunk, tokens: NDArray[np.int32], lengths: NDArray[np.int64], share: float
) -> None:
    """Compare evenly spread documents of a chunk with what the library makes of them."""
    ends = np.cumsum(lengths)
    for document in np.unique(np.arange(0, len(lengths), 1 / share).astype(np.int64)):
        text = chunk.data[chunk.offsets[document] : chunk.offsets[document + 1]].tobytes().decode()
        ids = tokens[ends[document] - lengths[document] : ends[document] - 1]
        if ids.tolist() != tokenizer.encode(text):
            raise DataError(
                f"document {chunk.ids[document]}: the fast encoder's IDs differ from those of 'tokenizers'; please "
                "report the text, and uninstall numba until this is fixed"
            )
