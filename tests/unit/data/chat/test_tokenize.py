"""Files of conversations to shards: what is counted, what is refused, and what a shard then holds."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from glmforge.config.chat import ChatConfig
from glmforge.data.chat.encode import encode
from glmforge.data.chat.records import conversation_of
from glmforge.data.chat.tokenize import tokenize_chat
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError

TURN = [{"role": "user", "content": "What is hot?"}, {"role": "assistant", "content": "The forge is."}]
RECORDS = [{"messages": TURN * n} for n in (1, 3, 2)]
WRONG = {"messages": [{"role": "user", "content": "?"}]}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(records) -> Path:
        path = tmp_path / "chat.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def test_a_shard_holds_the_samples_and_their_weights(write, tokenizer, tokenizer_dir, tmp_path):
    weighted = {"messages": [*TURN, TURN[0], TURN[1] | {"loss_weight": 0.5}]}
    info, report = tokenize_chat([write([*RECORDS, weighted])], tokenizer_dir, tmp_path / "chat")
    shard = TokenShard(tmp_path / "chat")
    shard.verify()
    shard.check_tokenizer(tokenizer)
    for number, record in enumerate([*RECORDS, weighted]):
        (document,) = encode(conversation_of(record), tokenizer, ChatConfig())
        assert shard.document(number).tolist() == document.ids.tolist()
        assert shard.loss.read(*shard.document_range(number)).tolist() == document.weights.tolist()
    counts = report.counts
    assert (counts.records, counts.wrong, counts.documents, counts.dropped, counts.cut) == (4, 0, 4, 0, 0)
    assert counts.tokens == info.num_tokens == shard.num_tokens
    assert counts.learnt == np.count_nonzero(shard.loss.read(0, shard.num_tokens))


def test_processes_write_the_same_bytes(write, tokenizer_dir, tmp_path):
    path = write([*RECORDS, WRONG] * 300)
    config = ChatConfig(max_wrong=300)
    results = [tokenize_chat([path], tokenizer_dir, tmp_path / str(n), config, num_workers=n) for n in (1, 2)]
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


def test_wrong_records_are_counted_and_told_up_to_the_limit(write, tokenizer_dir, tmp_path):
    path = write([RECORDS[0], WRONG, {"x": 1}, RECORDS[1]])
    _, report = tokenize_chat([path], tokenizer_dir, tmp_path / "a", ChatConfig(max_wrong=2))
    assert (report.counts.records, report.counts.wrong, report.counts.documents) == (4, 2, 2)
    assert report.problems[0].startswith(f"{path}:2: the last message must be the assistant's")
    assert report.problems[1].startswith(f"{path}:3: not a conversation: it has the fields x")
    for allowed, line in ((0, 2), (1, 3)):
        with pytest.raises(DataError, match=rf"chat\.jsonl:{line}: .*invalid records: 2, allowed: {allowed}"):
            tokenize_chat([path], tokenizer_dir, tmp_path / "b", ChatConfig(max_wrong=allowed))
    assert not list(tmp_path.glob("b*"))


def test_what_is_too_long_is_refused_dropped_or_cut(write, tokenizer, tokenizer_dir, tmp_path):
    one, three, two = (len(encode(conversation_of(r), tokenizer, ChatConfig())[0].ids) for r in RECORDS)
    path = write(RECORDS)

    def run(overlong: str, max_tokens: int):
        config = ChatConfig(overlong=overlong, max_tokens=max_tokens)
        info, report = tokenize_chat([path], tokenizer_dir, tmp_path / overlong, config, overwrite=True)
        assert (info.num_documents, info.num_tokens) == (report.counts.documents, report.counts.tokens)
        return report.counts.documents, report.counts.dropped, report.counts.cut, report.counts.tokens_cut

    with pytest.raises(DataError, match=rf"chat\.jsonl:2: {three} tokens, more than max_tokens {two}"):
        run("refuse", two)
    assert run("refuse", three) == (3, 0, 0, 0)
    assert run("drop", two) == (2, 1, 0, three)
    # The whole of three turns begins as the whole of two does, but for the end: <|user|> either way.
    assert run("cut", two) == (3, 0, 1, three - two)
    assert run("cut", two - 1) == (3, 0, 2, three + two - 2 * one)
    with pytest.raises(DataError, match=r"no conversation to write .*, 0 documents, 3 too long and dropped, 0 tokens"):
        run("cut", one - 1)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_nothing_to_write(tokenizer_dir, tmp_path, content):
    (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"empty\.jsonl: no conversation to write"):
        tokenize_chat([tmp_path / "empty.jsonl"], tokenizer_dir, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
