"""Encoded conversations are made once, found again, and never stale."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from glmforge.config.chat import ChatConfig
from glmforge.data.chat import cache
from glmforge.data.chat.cache import encoded_identity, encoded_prefix, ensure_encoded
from glmforge.data.tokens.shards import TokenShard, loss_path, shard_paths
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError

RECORD = {"messages": [{"role": "user", "content": "Is it hot?"}, {"role": "assistant", "content": "It is."}]}
WRONG = {"messages": []}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (RECORD, WRONG, RECORD)))
    return path


def ensure(path: Path, tokenizer_dir: Path, config: ChatConfig, directory: Path | None = None) -> Path:
    identity = encoded_identity(path, Tokenizer.load(tokenizer_dir), config)
    return ensure_encoded(path, tokenizer_dir, config, identity, directory)


def test_a_file_is_encoded_once_and_its_wrong_records_are_told_every_time(path, tokenizer_dir, tmp_path, caplog):
    config, times = ChatConfig(max_wrong=1), []
    with caplog.at_level("INFO"):
        for _ in range(2):
            caplog.clear()
            prefix = ensure(path, tokenizer_dir, config, tmp_path / "kept")
            times.append(shard_paths(prefix)[0].stat().st_mtime_ns)
            assert "3 records, 1 of them invalid, 2 documents, 44 tokens, 27% of" in caplog.text
            assert f"skipped: {path}:2: messages must be a list" in caplog.text
    assert times[0] == times[1]
    assert prefix.parent == tmp_path / "kept"
    TokenShard(prefix).verify()


def test_beside_the_file_unless_another_place_is_named(path, tokenizer_dir):
    assert ensure(path, tokenizer_dir, ChatConfig(max_wrong=1)).parent == path.parent


def test_whatever_the_encoding_depends_on_changes_its_name(path, tokenizer):
    first = encoded_identity(path, tokenizer, ChatConfig())
    assert encoded_identity(path, tokenizer, ChatConfig()) == first
    others = [
        encoded_identity(path, tokenizer, ChatConfig(**{k: v})) for k, v in {"turns": "last", "max_wrong": 1}.items()
    ]
    others.append(encoded_identity(path, Tokenizer(tokenizer.to_json(), "{{ messages }}"), ChatConfig()))
    path.write_text(path.read_text() + " ")
    others.append(encoded_identity(path, tokenizer, ChatConfig()))
    assert len({first, *others}) == 5


def test_what_is_refused_leaves_nothing(path, tokenizer_dir, tmp_path):
    with pytest.raises(DataError, match=r"chat\.jsonl:2: .*allowed: 0"):
        ensure(path, tokenizer_dir, ChatConfig(), tmp_path / "kept")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == [".lock"]


def test_what_a_killed_process_left_is_made_anew(path, tokenizer_dir, tmp_path):
    config = ChatConfig(max_wrong=1)
    prefix = encoded_prefix(path, encoded_identity(path, Tokenizer.load(tokenizer_dir), config), tmp_path)
    Path(f"{prefix}.bin.partial").write_bytes(b"half")
    shard_paths(prefix)[0].write_bytes(b"a .bin without its .idx")
    TokenShard(ensure(path, tokenizer_dir, config, tmp_path)).verify()
    assert not list(tmp_path.glob("*.partial"))


def test_two_processes_at_once_encode_once(path, tokenizer_dir, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_encode, args=(queue, path, tokenizer_dir, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(encoded for encoded, _ in found) == [0, 1]
    for _, prefix in found:
        assert loss_path(prefix).is_file()
        TokenShard(prefix).verify()


def _encode(queue, path, tokenizer_dir, directory) -> None:
    encode, calls = cache._encode, []
    cache._encode = lambda *args: (calls.append(os.getpid()), encode(*args))
    prefix = ensure(path, tokenizer_dir, ChatConfig(max_wrong=1), directory)
    queue.put((len(calls), prefix))


def test_a_file_that_is_gone(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: cannot be read"):
        encoded_identity(tmp_path / "nowhere.jsonl", tokenizer, ChatConfig())
