import fcntl
import os
import shutil

import pytest

from glmforge.data import copies as copies_module
from glmforge.data.stream.cache import copy_shards, local_prefix
from glmforge.data.tokens.shards import TokenShard, shard_paths
from glmforge.errors import DataError
from helpers.stream_runs import stream_config


@pytest.fixture
def data(shards, tmp_path):
    return stream_config(shards, [{"steps": 1}], data={"cache_dir": str(tmp_path / "node")}).data


def copies(data):
    return {path.name: path for path in data.cache_dir.rglob("*.*") if path.suffix in (".bin", ".idx", ".json")}


def test_without_a_cache_the_shards_are_read_in_place(shards):
    data = stream_config(shards, [{"steps": 1}]).data
    copy_shards(data)
    assert [local_prefix(source, data) for source in data.sources] == [shard.prefix for shard in shards.values()]


def test_copies_are_the_shards(data, shards):
    copy_shards(data)
    for source, shard in zip(data.sources, shards.values(), strict=True):
        prefix = local_prefix(source, data)
        assert prefix.is_relative_to(data.cache_dir)
        assert prefix.name == shard.prefix.name
        copy = TokenShard(prefix)
        copy.verify()
        assert copy.identity() == shard.identity()
        assert copy.tokens(0, 81).tolist() == shard.tokens(0, 81).tolist()
    assert len(copies(data)) == 6
    assert not list(data.cache_dir.rglob("*.partial"))


def test_one_copy_that_is_gone_or_short_is_made_again(data):
    copy_shards(data)
    before = {name: path.stat().st_ino for name, path in copies(data).items()}
    copies(data)["web.idx"].unlink()
    os.truncate(copies(data)["code.bin"], 10)
    copy_shards(data)
    for source in data.sources:
        TokenShard(local_prefix(source, data)).verify()
    after = {name: path.stat().st_ino for name, path in copies(data).items()}
    assert {name for name in after if after[name] == before[name]} >= {"web.bin", "web.json", "code.idx", "code.json"}


def test_a_shard_that_was_written_again_is_copied_again(data, make_shard, shards):
    copy_shards(data)
    shutil.copy(shard_paths(make_shard([range(600, 681)], "new").prefix)[0], shard_paths(shards["code"].prefix)[0])
    shard_paths(shards["code"].prefix)[2].unlink()  # without a description there is no checksum to compare
    os.utime(shard_paths(shards["code"].prefix)[0], (10, 10))
    copy_shards(data)
    copy = TokenShard(local_prefix(data.sources[1], data))
    assert copy.info is None
    assert copy.tokens(0, 3).tolist() == [600, 601, 602]


def test_damaged_original(data, shards):
    path = shard_paths(shards["code"].prefix)[0]
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"code\.bin: is damaged: its checksum differs from the recorded one; create "
        r"it",
    ):
        copy_shards(data)
    assert "code.bin" not in copies(data)
    assert not list(data.cache_dir.rglob("*.partial"))


def test_too_little_space(data, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(DataError, match=r"data\.cache_dir .*/node: 0\.0 GB of shards are to be copied and 0\.0 GB are"):
        copy_shards(data)
    assert copies(data) == {}


def test_no_space_is_needed_for_what_is_there(data, monkeypatch):
    copy_shards(data)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    copy_shards(data)


def test_missing_original(data, shards):
    shard_paths(shards["web"].prefix)[1].unlink()
    with pytest.raises(DataError, match=r"web\.idx: missing; data\.sources needs"):
        copy_shards(data)


def test_shards_of_one_name_are_kept_apart(shards, make_shard, tmp_path):
    other = tmp_path / "elsewhere" / "web"
    other.parent.mkdir()
    for old, new in zip(shard_paths(shards["code"].prefix), shard_paths(other), strict=True):
        shutil.copy(old, new)
    both = {"first": shards["web"], "second": TokenShard(other)}
    data = stream_config(both, [{"steps": 1}], data={"cache_dir": str(tmp_path / "node")}).data
    copy_shards(data)
    assert [TokenShard(local_prefix(source, data)).num_tokens for source in data.sources] == [201, 81]


def test_a_process_copies_alone(data, monkeypatch):
    copied = []

    def copy_while_others_wait(file):
        with (data.cache_dir / ".lock").open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        copied.append(file.original)

    monkeypatch.setattr(copies_module, "_copy", copy_while_others_wait)
    copy_shards(data)
    assert len(copied) == 6
    with (data.cache_dir / ".lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
