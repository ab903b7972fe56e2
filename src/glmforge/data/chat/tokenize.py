"""Files of conversations to documents, and to a token shard with loss weights, on all cores.

Nothing is omitted in silence: wrong records, conversations that are too long and those that were cut are counted, and
the first invalid ones shown with line and reason. How many may be invalid is configured; by default none.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.encode import EncodedConversation, cut, encode
from glmforge.data.chat.read import RawRecord, read_records
from glmforge.data.chat.records import conversation_of
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import ShardInfo
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.data.worker_pool import in_processes
from glmforge.errors import DataError
from glmforge.observe.units import counted

_CHUNK_BYTES, _CHUNK_RECORDS = 1 << 20, 512
_NUM_PROBLEMS_KEPT = 10


@dataclass
class ChatCounts:
    """What became of the records.

    Attributes:
        records: read.
        wrong: of those, refused.
        documents: made of the others; a conversation may make several.
        dropped: documents omitted as too long, also where not even their first turn would have fit.
        cut: documents of which only the first turns were kept.
        tokens: of the documents kept.
        learnt: of those tokens, with a weight above 0.
        tokens_cut: that dropped and cut documents lost.
        text_bytes: of the records.
    """

    records: int = 0
    wrong: int = 0
    documents: int = 0
    dropped: int = 0
    cut: int = 0
    tokens: int = 0
    learnt: int = 0
    tokens_cut: int = 0
    text_bytes: int = 0

    def add(self, other: "ChatCounts") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def summary(self) -> str:
        """In one line."""
        said = [counted(self.records, "record")]
        if self.wrong:
            said.append(f"{self.wrong:,} of them invalid")
        if self.documents != self.records:
            said.append(counted(self.documents, "document"))
        said += [f"{n:,} too long and {what}" for n, what in ((self.dropped, "dropped"), (self.cut, "cut")) if n]
        return ", ".join([*said, f"{self.tokens:,} tokens, {self.learnt / max(1, self.tokens):.0%} of them trained on"])


class Encoded(NamedTuple):
    """Documents of some records, the place of each, what is wrong with the other records, and how many there are;
    of each document what the weights of its conversation's labels add up to, over all of its documents."""

    documents: list[EncodedConversation]
    places: list[str]
    problems: list[str]
    counts: ChatCounts
    sums: list[float]


@dataclass
class ChatReport:
    """What became of all records so far; `problems` are the first that were wrong."""

    counts: ChatCounts = field(default_factory=ChatCounts)
    problems: list[str] = field(default_factory=list)

    def add(self, encoded: Encoded) -> None:
        self.counts.add(encoded.counts)
        self.problems += encoded.problems[: _NUM_PROBLEMS_KEPT - len(self.problems)]


def encode_files(
    paths: Sequence[Path], tokenizer_dir: Path, config: ChatConfig, num_workers: int = 1
) -> Iterator[Encoded]:
    """The records of files and directories as documents, some hundred records at a time, in order.

    Raises:
        DataError: a file cannot be read; a document is longer than `max_tokens` where that is to be refused; a worker
            died. Wrong records are in the result.
    """
    if num_workers < 1:
        raise DataError(f"num_workers {num_workers}: must be at least 1")
    chunks = _chunks(read_records(paths))
    if num_workers == 1:
        tokenizer = Tokenizer.load(tokenizer_dir)
        yield from (_encode_chunk(chunk, tokenizer, config) for chunk in chunks)
    else:
        yield from in_processes(_encode_in_worker, chunks, num_workers, _start_worker, tokenizer_dir, config)


def tokenize_chat(
    paths: Sequence[Path],
    tokenizer_dir: Path,
    prefix: Path,
    config: ChatConfig | None = None,
    *,
    num_workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[ChatCounts], None] = lambda _: None,
) -> tuple[ShardInfo, ChatReport]:
    """Encode files of conversations into the token shard `prefix` with loss weights.

    Raises:
        DataError: more records are wrong than `config.max_wrong`, or one is too long and that is to be refused; there
            is nothing to write; the shard exists; the disk is full. No shard is left behind then.
    """
    config, tokenizer, report = config or ChatConfig(), Tokenizer.load(tokenizer_dir), ChatReport()
    with ShardWriter(prefix, tokenizer.vocab_size, overwrite=overwrite, weighted=True) as writer:
        for encoded in encode_files(paths, tokenizer_dir, config, num_workers):
            report.add(encoded)
            if report.counts.wrong > config.max_wrong:
                raise DataError(_too_many_wrong(report, config.max_wrong))
            if encoded.documents:
                writer.add(*_joined(encoded.documents), np.array(encoded.sums, np.float32))
            progress(report.counts)
        source = " ".join(map(str, paths))
        if not report.counts.documents:
            raise DataError(f"{source}: no conversation to write ({report.counts.summary()})")
        return writer.finish(tokenizer.fingerprint, source, report.counts.text_bytes), report


def _too_many_wrong(report: ChatReport, allowed: int) -> str:
    first = report.problems[min(allowed, len(report.problems) - 1)]
    return f"{first} (invalid records: {report.counts.wrong:,}, allowed: {allowed:,}; fix it, or set max_wrong)"


def _joined(
    documents: Sequence[EncodedConversation],
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]:
    """Ids end to end, lengths, weights end to end."""
    lengths = np.array([len(document.ids) for document in documents], np.int64)
    ids = np.concatenate([document.ids for document in documents])
    return ids, lengths, np.concatenate([document.weights for document in documents])


def _chunks(records: Iterable[RawRecord]) -> Iterator[list[RawRecord]]:
    chunk: list[RawRecord] = []
    num_bytes = 0
    for record in records:
        chunk.append(record)
        num_bytes += record.num_bytes
        if num_bytes >= _CHUNK_BYTES or len(chunk) == _CHUNK_RECORDS:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


_worker: tuple[Tokenizer, ChatConfig]
"""A worker's own, set when it starts."""


def _start_worker(tokenizer_dir: Path, config: ChatConfig) -> None:
    global _worker
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # this process is the parallelism
    _worker = Tokenizer.load(tokenizer_dir), config


def _encode_in_worker(chunk: list[RawRecord]) -> Encoded:
    return _encode_chunk(chunk, *_worker)


def _encode_chunk(chunk: list[RawRecord], tokenizer: Tokenizer, config: ChatConfig) -> Encoded:
    result = Encoded([], [], [], ChatCounts(), [])
    for record in chunk:
        result.counts.records += 1
        result.counts.text_bytes += record.num_bytes
        try:
            documents = encode(conversation_of(record.parse()), tokenizer, config)
        except DataError as error:
            said = str(error)
            result.problems.append(said if said.startswith(record.where) else f"{record.where}: {said}")
            result.counts.wrong += 1
            continue
        first = len(result.documents)
        for document in documents:
            _keep(result, document, record.where, tokenizer, config)
        kept = result.documents[first:]
        # The first token of a document is never a label.
        result.sums.extend([float(sum(each.weights[1:].sum(dtype=np.float64) for each in kept))] * len(kept))
    return result


def _keep(result: Encoded, document: EncodedConversation, where: str, tokenizer: Tokenizer, config: ChatConfig) -> None:
    """Add a document to the result, or what is left of it under `max_tokens`."""
    kept: EncodedConversation | None = document
    if config.max_tokens is not None and len(document.ids) > config.max_tokens:
        if config.overlong == "refuse":
            raise DataError(
                f"{where}: {len(document.ids):,} tokens, more than max_tokens {config.max_tokens:,}; raise it (and "
                "seq_len), or set overlong to drop or cut"
            )
        kept = cut(document, config.max_tokens, tokenizer) if config.overlong == "cut" else None
        result.counts.cut += kept is not None
        result.counts.dropped += kept is None
        result.counts.tokens_cut += len(document.ids) - (0 if kept is None else len(kept.ids))
    if kept is not None:
        result.documents.append(kept)
        result.places.append(where)
        result.counts.documents += 1
        result.counts.tokens += len(kept.ids)
        result.counts.learnt += kept.num_trained
