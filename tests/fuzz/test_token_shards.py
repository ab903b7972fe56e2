"""Token shards (.bin, .idx, .json, .loss) and best-fit packings of them, opened and used as a run does."""

import struct
from pathlib import Path

import numpy as np

from fuzz.format import Format
from fuzz.mutate import byte_mutator
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.data.stream.packing import open_packing
from glmforge.data.stream.rows import Packing, open_rows
from glmforge.data.tokens.loss_weights import MAX_WEIGHT
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import HEADER, TokenShard, check_ids

_SEQ_LEN = 16
_VOCAB_SIZE = 300


def write(directory: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 40).astype(np.int32)
    with ShardWriter(directory / "text", _VOCAB_SIZE) as writer:
        writer.add(rng.integers(0, _VOCAB_SIZE, int(lengths.sum())).astype(np.int32), lengths)
        writer.finish("0" * 64, "made up", 4000)
    open_packing(TokenShard(directory / "text"), _SEQ_LEN)
    lengths = rng.integers(1, _SEQ_LEN + 1, 40).astype(np.int32)
    total = int(lengths.sum())
    with ShardWriter(directory / "chat", _VOCAB_SIZE, weighted=True) as writer:
        ids = rng.integers(0, _VOCAB_SIZE, total).astype(np.int32)
        writer.add(ids, lengths, rng.choice([0, 0.5, 1], total))
        writer.finish("0" * 64, "made up", 4000)


def read(directory: Path) -> None:
    _use(TokenShard(directory / "text"), "truncate", "best_fit")
    chat = TokenShard(directory / "chat")
    _use(chat, "truncate", "single")
    if chat.loss is not None:
        weights = chat.loss.read(0, chat.num_tokens)
        assert ((weights >= 0) & (weights <= MAX_WEIGHT)).all()


def _use(shard: TokenShard, *packings: Packing) -> None:
    for packing in packings:
        rows = open_rows(shard, seq_len=_SEQ_LEN, packing=packing, document_mask=True)
        for index in range(min(rows.num_rows, 50)):
            window = rows.row(index)
            assert sum(window.lengths) == len(window.ids_S) == len(window.labels_S) == _SEQ_LEN
            for start, stop in rows.describe(index):
                check_ids(shard.tokens(start, stop), _VOCAB_SIZE, shard.prefix, start)
    for document in range(min(shard.num_documents, 50)):
        shard.document(document)
    for token in range(0, shard.num_tokens, 7):
        shard.document_at(token)


_BOMBS = {
    "many_documents": struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 1 << 60, 1 << 61),
    "one_enormous_document": struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", 1, 8, 1, 2, 2**31 - 1, 0, 0, 1),
    "negative_length": struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", 1, 8, 1, 2, -1, 0, 0, 1),
    "pointer_wraps_around": struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", 1, 8, 1, 2, 1, -(2**63), 0, 1),
    "only_a_header": bytes(HEADER.size),
}


FORMAT = Format(
    name="token_shards",
    write=write,
    read=read,
    mutators={"*.json": json_mutator(), "*": byte_mutator()},
    bombs={
        name: lambda directory, data=data: (directory / "text.idx").write_bytes(data) for name, data in _BOMBS.items()
    },  # type: ignore[misc]
)


def test_mutations_and_bombs() -> None:
    check(__name__)
