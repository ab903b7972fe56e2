import hashlib
import json
import pickle
import resource
import struct

import numpy as np
import pytest

from glmforge.data.tokens.shard_writer import ShardWriter, token_dtype_code
from glmforge.data.tokens.shards import ShardInfo, TokenShard
from glmforge.errors import DataError

DOCUMENTS = [[5, 6, 7, 0], [8, 0], [0], [9, 10, 11, 12, 0]]
FLAT = [5, 6, 7, 0, 8, 0, 0, 9, 10, 11, 12, 0]

# The same documents, byte by byte from the format's definition.
MEGATRON_BIN = b"".join(struct.pack("<H", token) for token in FLAT)
MEGATRON_IDX = (
    b"MMIDIDX\x00\x00"
    + b"\x01\x00\x00\x00\x00\x00\x00\x00"  # version
    + b"\x08"  # uint16
    + b"\x04\x00\x00\x00\x00\x00\x00\x00"  # sequences
    + b"\x05\x00\x00\x00\x00\x00\x00\x00"  # document borders
    + struct.pack("<4i", 4, 2, 1, 5)
    + struct.pack("<4q", 0, 8, 12, 14)
    + struct.pack("<5q", 0, 1, 2, 3, 4)
)


def write_foreign(directory, data=MEGATRON_BIN, index=MEGATRON_IDX):
    (directory / "x.bin").write_bytes(data)
    (directory / "x.idx").write_bytes(index)
    return directory / "x"


def test_written_bytes_are_megatrons(make_shard):
    shard = make_shard(DOCUMENTS)
    assert shard.prefix.with_suffix(".bin").read_bytes() == MEGATRON_BIN
    assert shard.prefix.with_suffix(".idx").read_bytes() == MEGATRON_IDX


def test_megatrons_bytes_are_read(tmp_path):
    shard = TokenShard(write_foreign(tmp_path))
    assert (shard.num_tokens, shard.num_documents, shard.info) == (12, 4, None)
    assert [shard.document(i).tolist() for i in range(4)] == DOCUMENTS
    assert shard.tokens(3, 9).tolist() == FLAT[3:9]
    shard.verify()


def test_documents_of_several_sequences(tmp_path):
    """Two documents of sequences (4, 2) and (1, 0, 5), as other tools write them."""
    index = (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 5, 3)
        + struct.pack("<5i", 4, 2, 1, 0, 5)
        + struct.pack("<5q", 0, 8, 12, 14, 14)
        + struct.pack("<3q", 0, 2, 5)
    )
    shard = TokenShard(write_foreign(tmp_path, index=index))
    shard.verify()
    assert [shard.document(i).tolist() for i in range(2)] == [FLAT[:6], FLAT[6:]]
    assert shard.document_lengths(0, 12).tolist() == [6, 6]
    assert shard.document_lengths(7, 12).tolist() == [5]


def test_empty_documents_have_no_piece(tmp_path):
    index = (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 4, 5)
        + struct.pack("<4i", 0, 6, 0, 6)
        + struct.pack("<4q", 0, 0, 12, 12)
        + struct.pack("<5q", 0, 1, 2, 3, 4)
    )
    shard = TokenShard(write_foreign(tmp_path, index=index))
    assert shard.document_lengths(0, 12).tolist() == [6, 6]
    assert [len(shard.document(i)) for i in range(4)] == [0, 6, 0, 6]


def test_document_lengths_of_every_stretch(make_shard):
    shard, owner = make_shard(DOCUMENTS), np.repeat(np.arange(4), [len(document) for document in DOCUMENTS])
    for start, stop in ((a, b) for a in range(12) for b in range(a + 1, 13)):
        expected = np.unique(owner[start:stop], return_counts=True)[1].tolist()
        assert shard.document_lengths(start, stop).tolist() == expected


@pytest.mark.parametrize(("vocab_size", "code"), [(100, 8), (65_499, 8), (65_500, 4), (151_552, 4)])
def test_ids_are_as_small_as_the_vocabulary_allows(make_shard, vocab_size, code):
    assert token_dtype_code(vocab_size) == code
    shard = make_shard([[vocab_size - 1, 0]], vocab_size=vocab_size)
    assert shard.document(0).tolist() == [vocab_size - 1, 0]
    assert shard.tokens(0, 2).dtype == {8: np.uint16, 4: np.int32}[code]


def test_description_tells_where_the_shard_comes_from(make_shard):
    shard = make_shard(DOCUMENTS)
    assert shard.info == ShardInfo(
        tokenizer_fingerprint="fingerprint-of-a-test",
        vocab_size=1000,
        num_documents=4,
        num_tokens=12,
        num_text_bytes=48,
        source="test",
        bin_sha256=hashlib.sha256(MEGATRON_BIN).hexdigest(),
    )
    assert shard.identity() == {"num_tokens": 12, "sha256": shard.info.bin_sha256}


def test_foreign_shards_are_identified_by_their_index(tmp_path):
    before = TokenShard(write_foreign(tmp_path)).identity()
    other = MEGATRON_IDX[:34] + struct.pack("<4i", 4, 2, 2, 4) + struct.pack("<4q", 0, 8, 12, 16)
    assert TokenShard(write_foreign(tmp_path, index=other + MEGATRON_IDX[82:])).identity() != before


def test_pickling_carries_the_name_and_not_the_tokens(make_shard):
    shard = make_shard([list(range(1000))])
    assert len(pickle.dumps(shard)) < 1000
    assert pickle.loads(pickle.dumps(shard)).tokens(3, 5).tolist() == [3, 4]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 13), (5, 4)])
def test_tokens_outside_the_shard(make_shard, start, stop):
    with pytest.raises(IndexError):
        make_shard(DOCUMENTS).tokens(start, stop)


def _edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda p: p("bin").write_bytes(MEGATRON_BIN[:-3]), "shard.bin: 3 bytes shorter .* tokenize'"),
        (
            lambda p: p("bin").write_bytes(MEGATRON_BIN + b"\0\0"),
            "shard.bin: 2 bytes longer .* tokenize'",
        ),
        (lambda p: p("bin").write_bytes(b""), r"shard.bin: 24 bytes shorter"),
        (lambda p: p("idx").write_bytes(MEGATRON_IDX[:-8]), "shard.idx: 8 bytes shorter .* tokenize'"),
        (lambda p: p("idx").write_bytes(MEGATRON_IDX[:20]), "shard.idx: not a token shard index; pass the prefix"),
        (lambda p: p("idx").write_bytes(b""), "shard.idx: not a token shard index; pass the prefix"),
        (
            lambda p: p("idx").write_bytes(b"TNTIDX" + MEGATRON_IDX[6:]),
            "shard.idx: not a token shard index; pass the prefix",
        ),
        (
            lambda p: p("idx").write_bytes(MEGATRON_IDX[:9] + b"\x02" + MEGATRON_IDX[10:]),
            r"shard.idx: index version 2 with dtype code 8; supported are version 1 with codes \[1",
        ),
        (
            lambda p: p("idx").write_bytes(MEGATRON_IDX[:17] + b"\x07" + MEGATRON_IDX[18:]),
            r"dtype code 7; supported are version 1 with codes \[1",
        ),
        (
            lambda p: p("idx").write_bytes(struct.pack("<9sQBQQq", b"MMIDIDX\0\0", 1, 8, 0, 1, 0)),
            r"contains no documents",
        ),
        (
            lambda p: p("idx").write_bytes(MEGATRON_IDX[:-8] + struct.pack("<q", 3)),
            r"shard.idx: its documents do not cover its sequences",
        ),
        (lambda p: p("bin").unlink(), r"shard.bin: missing"),
        (lambda p: (p("bin").unlink(), p("idx").unlink()), r"shard: no token shard"),
        (lambda p: p("json").write_text("{"), r"shard.json:1: not valid JSON"),
        (
            lambda p: p("json").write_text('{"a": 1}'),
            r"shard.json: not a token shard description "
            r"\(tokenizer_fingerprint is missing\)",
        ),
        (lambda p: _edit_json(p("json"), num_tokens=13), r"json says 13 tokens, \.idx says 12; they"),
    ],
)
def test_damage_is_found_on_opening(make_shard, damage, complaint):
    prefix = make_shard(DOCUMENTS).prefix
    damage(lambda suffix: prefix.with_suffix(f".{suffix}"))
    with pytest.raises(DataError, match=complaint):
        TokenShard(prefix)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda p: p("bin").write_bytes(b"\x06" + MEGATRON_BIN[1:]), "checksum"),
        (
            lambda p: p("idx").write_bytes(MEGATRON_IDX[:58] + struct.pack("<q", 10) + MEGATRON_IDX[66:]),
            "are not contiguous",
        ),
    ],
)
def test_damage_is_found_by_verify(make_shard, damage, complaint):
    prefix = make_shard(DOCUMENTS).prefix
    damage(lambda suffix: prefix.with_suffix(f".{suffix}"))
    shard = TokenShard(prefix)
    with pytest.raises(DataError, match=complaint):
        shard.verify()


def test_shard_of_another_tokenizer(make_shard, tokenizer):
    with pytest.raises(DataError, match=r"shard: written by another tokenizer \(1,000 ids, fingerprint finger"):
        make_shard(DOCUMENTS).check_tokenizer(tokenizer)


def test_foreign_shard_is_checked_by_its_ids(tmp_path, tokenizer):
    data = MEGATRON_BIN[:6] + struct.pack("<H", tokenizer.vocab_size) + MEGATRON_BIN[8:]
    TokenShard(write_foreign(tmp_path)).check_tokenizer(tokenizer)
    with pytest.raises(DataError, match="token 3 is id 360, outside the vocabulary of 360"):
        TokenShard(write_foreign(tmp_path, data)).check_tokenizer(tokenizer)


@pytest.mark.parametrize("bad", [-1, 100])
def test_writer_refuses_an_id_outside_the_vocabulary(tmp_path, bad):
    with ShardWriter(tmp_path / "s", 100) as writer:
        writer.add(np.array([1, 2]), np.array([2]))
        with pytest.raises(DataError, match=f"token 3 is id {bad}, outside"):
            writer.add(np.array([1, bad]), np.array([2]))


def test_writer_refuses_a_document_longer_than_the_index_can_tell(tmp_path):
    tokens = np.broadcast_to(np.uint16(1), (1 << 31) + 1)  # takes no memory
    with ShardWriter(tmp_path / "s", 100) as writer:
        writer.add(np.array([1]), np.array([1]))
        with pytest.raises(
            DataError, match="document 2 has 2,147,483,648 tokens, but at most 2,147,483,647 can be stored"
        ):
            writer.add(tokens, np.array([1, 1 << 31]))


def test_writer_leaves_nothing_without_finish(tmp_path):
    with ShardWriter(tmp_path / "s", 100) as writer:
        writer.add(np.array([1]), np.array([1]))
    assert list(tmp_path.iterdir()) == []


def test_writer_refuses_an_empty_shard(tmp_path):
    with pytest.raises(DataError, match="no documents"), ShardWriter(tmp_path / "s", 100) as writer:
        writer.finish("f", "empty.txt", 0)
    assert list(tmp_path.iterdir()) == []


def test_writer_replaces_only_if_asked(make_shard, tmp_path):
    make_shard([[1, 2]])
    with pytest.raises(DataError, match=r"shard.bin: already exists; choose another name, or pass"):
        make_shard([[3]])
    with ShardWriter(tmp_path / "shard", 1000, overwrite=True) as writer:
        writer.add(np.array([3]), np.array([1]))
        writer.finish("f", "", 1)
    assert TokenShard(tmp_path / "shard").tokens(0, 1).tolist() == [3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard.bin", "shard.idx", "shard.json"]


@pytest.mark.parametrize(
    ("num_documents", "length", "weighted", "failing"),
    [
        pytest.param(1, 10_000, False, "bin", id="tokens"),
        pytest.param(1000, 1, False, "idx", id="index"),
        pytest.param(1, 3500, True, "(loss|bin)", id="weights"),
    ],
)
def test_full_disk(make_shard, tmp_path, num_documents, length, weighted, failing):
    """A limit on the size of files stands in for a full disk. The shard that was to be replaced stays."""
    make_shard(DOCUMENTS, "s")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match=rf"s.{failing}: cannot be written"):
            _replace_shard(tmp_path / "s", num_documents, length, weighted)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.bin", "s.idx", "s.json"]
    shard = TokenShard(tmp_path / "s")
    shard.verify()
    assert shard.tokens(0, 12).tolist() == FLAT


def _replace_shard(prefix, num_documents, length, weighted):
    num_tokens = num_documents * length
    with ShardWriter(prefix, 100, overwrite=True, weighted=weighted) as writer:
        weights = np.ones(num_tokens) if weighted else None
        writer.add(np.zeros(num_tokens, np.int32), np.full(num_documents, length), weights)
        writer.finish("f", "", 1)


@pytest.mark.parametrize(
    ("array", "entry", "value"),
    [("pointers", 1, 3), ("pointers", 1, -8), ("pointers", 1, 1 << 60), ("borders", 1, -1), ("borders", 1, 1 << 40)],
)
def test_a_damaged_entry_of_the_index_is_an_error_where_it_is_used(make_shard, array, entry, value):
    """Opening reads no more than the ends of each array; whoever comes across the entry is told."""
    prefix = make_shard(DOCUMENTS).prefix
    path, num = prefix.with_suffix(".idx"), len(DOCUMENTS)
    content = bytearray(path.read_bytes())
    struct.pack_into("<q", content, 34 + (4 if array == "pointers" else 12) * num + 8 * entry, value)
    path.write_bytes(content)
    shard, sound = TokenShard(prefix), make_shard(DOCUMENTS, name="sound")
    for use in (lambda: shard.document(0), lambda: shard.document(1), shard.verify):
        with pytest.raises(DataError, match=r"shard\.idx: .* is damaged"):
            use()
    found = set()
    for start in range(shard.num_tokens):
        for use in ("document_at", "document_lengths"):
            arguments = (start,) if use == "document_at" else (start, shard.num_tokens)
            try:
                found.add(str(getattr(shard, use)(*arguments)) == str(getattr(sound, use)(*arguments)))
            except DataError:
                found.add("refused")
    assert "refused" in found
    assert False not in found  # nowhere a wrong answer
