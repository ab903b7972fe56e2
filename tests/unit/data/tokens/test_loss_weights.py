"""Loss weights beside a shard: stored exactly, tied to their shard, and not believed."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard, loss_path, shard_paths
from glmforge.errors import DataError

WEIGHTS = [0, 1, 0.25, 1, 0, 0.1]
_TABLE = struct.calcsize("<8sIIQ32s")


def write(prefix: Path, weights=WEIGHTS, **options) -> TokenShard:
    with ShardWriter(prefix, 100, weighted=weights is not None, **options) as writer:
        tokens = np.arange(6)
        writer.add(tokens[:2], np.array([2]), None if weights is None else np.array(weights[:2]))
        writer.add(tokens[2:], np.array([1, 3]), None if weights is None else np.array(weights[2:]))
        writer.finish("fingerprint", "test", 6)
    return TokenShard(prefix)


def test_weights_come_back_exactly(tmp_path):
    shard = write(tmp_path / "a")
    shard.verify()
    assert not shard.loss.is_mask
    for start in range(7):
        for stop in range(start, 7):
            assert shard.loss.read(start, stop).tolist() == np.float32(WEIGHTS[start:stop]).tolist()


def test_sums_of_conversations_come_back_and_are_verified(tmp_path):
    with ShardWriter(tmp_path / "a", 100, weighted=True) as writer:
        writer.add(np.arange(3), np.array([1, 2]), np.ones(3), np.array([0.1, 7.0]))
        writer.add(np.arange(2), np.array([2]), np.ones(2), np.array([3.5]))
        writer.finish("fingerprint", "test", 6)
    shard = TokenShard(tmp_path / "a")
    shard.verify()
    assert shard.loss.sums_D.tolist() == np.float32([0.1, 7.0, 3.5]).tolist()
    assert write(tmp_path / "b").loss.sums_D is None
    content = loss_path(tmp_path / "a").read_bytes()
    loss_path(tmp_path / "a").write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(DataError, match="damaged"):
        TokenShard(tmp_path / "a").verify()


def test_zeros_and_ones_are_a_mask_and_a_shard_without_weights_has_none(tmp_path):
    assert write(tmp_path / "a", [0, 1, 0, 0, 1, 1]).loss.is_mask
    plain = write(tmp_path / "b", None)
    assert plain.loss is None
    assert "loss_sha256" not in shard_paths(plain.prefix)[2].read_text()


def test_weights_are_part_of_what_a_shard_is(tmp_path):
    shards = [write(tmp_path / "a"), write(tmp_path / "b", [0, 1, 0.5, 1, 0, 0.1]), write(tmp_path / "c", None)]
    assert len({str(shard.identity()) for shard in shards}) == 3


def test_a_shard_written_again_without_weights_loses_them(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(DataError, match="exists; choose another name, or pass --force"):
        write(tmp_path / "a", None)
    assert write(tmp_path / "a", None, overwrite=True).loss is None
    assert not loss_path(tmp_path / "a").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_second_writer_takes_nothing_from_the_first(tmp_path, overwrite):
    with ShardWriter(tmp_path / "a", 100, overwrite=overwrite, weighted=True) as first:
        first.add(np.arange(2), np.array([2]), np.ones(2))
        second = ShardWriter(tmp_path / "a", 100, overwrite=overwrite, weighted=True)
        with pytest.raises(DataError, match="another process is writing it"), second:
            pass
        first.finish("fingerprint", "test", 2)
        with (
            pytest.raises(DataError, match="exists; choose another name, or pass --force"),
            ShardWriter(tmp_path / "a", 100),
        ):
            pass
    TokenShard(tmp_path / "a").verify()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".bin", ".idx", ".json", ".loss"]


def test_a_second_writer_that_came_late_replaces_nothing(tmp_path):
    second = ShardWriter(tmp_path / "a", 100)
    write(tmp_path / "a")
    with pytest.raises(DataError, match="exists; choose another name, or pass --force"), second:
        pass
    TokenShard(tmp_path / "a").verify()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".bin", ".idx", ".json", ".loss"]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), 1e6, 1e-30])
def test_what_is_no_weight_is_refused(tmp_path, bad):
    with pytest.raises(DataError, match=r"loss weights must be 0, or from 0\.0001 to 10000"):
        write(tmp_path / "a", [*WEIGHTS[:5], bad])


def test_too_many_different_weights_are_refused(tmp_path):
    with (
        pytest.raises(DataError, match="more than 256 different loss weights: round them"),
        ShardWriter(tmp_path / "a", 100, weighted=True) as writer,
    ):
        writer.add(np.zeros(257, int), np.array([257]), np.arange(257) / 7)


def _with_header(change) -> bytes:
    """A damage to the header whose checksum is right again, as an attacker would write it."""

    def damage(content: bytes) -> bytes:
        header = bytearray(content[: _TABLE + 1024])
        change(header)
        return bytes(header) + struct.pack("<I", zlib.crc32(header)) + content[_TABLE + 1028 :]

    return damage


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda c: b"", "not a file of loss weights"),
        (lambda c: c[:60] + b"\1" + c[61:], "header is damaged"),
        (lambda c: c[:-1], "5 weights for a shard of 6"),
        (_with_header(lambda h: struct.pack_into("<I", h, 8, 3)), "version 3"),
        (_with_header(lambda h: struct.pack_into("<I", h, 8, 2)), "weights for a shard of 6"),
        (_with_header(lambda h: struct.pack_into("<I", h, 12, 257)), "header is damaged"),
        (_with_header(lambda h: struct.pack_into("<Q", h, 16, 1 << 62)), "weights for a shard of 6"),
        (_with_header(lambda h: struct.pack_into("<f", h, _TABLE, float("nan"))), "header is damaged"),
        (_with_header(lambda h: struct.pack_into("<f", h, _TABLE, -1)), "header is damaged"),
        (_with_header(lambda h: struct.pack_into("<f", h, _TABLE, 0.5)), "nother shard, by the checksum in its"),
    ],
)
def test_damage_is_found_on_opening(tmp_path, damage, complaint):
    prefix = write(tmp_path / "a").prefix
    path = loss_path(prefix)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=complaint):
        TokenShard(prefix)


def test_a_code_without_a_weight_is_found_when_it_is_read_and_another_code_by_verify(tmp_path):
    prefix = write(tmp_path / "a").prefix
    path = loss_path(prefix)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x09")
    with pytest.raises(DataError, match="damaged"):
        TokenShard(prefix).loss.read(3, 6)
    path.write_bytes(content[:-1] + b"\0")
    with pytest.raises(DataError, match="damaged"):
        TokenShard(prefix).verify()


def test_a_copy_without_its_weights_is_not_trained_on_in_full(tmp_path):
    weighted, plain = write(tmp_path / "a"), write(tmp_path / "b", None)
    loss_path(weighted.prefix).rename(loss_path(plain.prefix))
    with pytest.raises(DataError, match="missing, and without it all tokens would be trained on; copy it too"):
        TokenShard(weighted.prefix)
    with pytest.raises(DataError, match="nother shard, by the checksum in its"):
        TokenShard(plain.prefix)
