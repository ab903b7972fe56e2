"""Replies survive a kill at any byte, damage, and a change of the number of ranks."""

from pathlib import Path

import pytest

from glmforge.evaluate.benchmarks.replies import Reply, ReplyStore, request_digest

REPLIES = {f"request {number}": Reply("text", number, 3, text="ä\n" * number, logprob=-1.5) for number in range(5)}


def written(directory: Path, rank: int = 0) -> Path:
    with ReplyStore(directory, rank) as store:
        for digest, reply in REPLIES.items():
            store.add({digest: reply})
    return directory / f"replies-{rank:04}.jsonl"


def test_found_again_by_any_rank(tmp_path: Path) -> None:
    written(tmp_path, 1)
    assert ReplyStore(tmp_path, 0).known == REPLIES


def test_cut_at_every_byte(tmp_path: Path) -> None:
    content = written(tmp_path).read_bytes()
    for length in range(0, len(content), 7):
        path = tmp_path / str(length) / "replies-0000.jsonl"
        path.parent.mkdir()
        path.write_bytes(content[:length])
        whole = content[:length].count(b"\n")
        with ReplyStore(path.parent) as store:
            assert len(store.known) in (whole, whole + 1)  # the last line may lack its end alone
            store.add({"new": REPLIES["request 1"]})
        again = ReplyStore(path.parent)
        assert "new" in again.known
        assert len(again.known) >= whole + 1


@pytest.mark.parametrize("damage", [b"{}\n", b"\x00\xff\n", b"0123456789abcdef {}\n", b"\n"])
def test_damaged_lines_do_not_count(tmp_path: Path, damage: bytes) -> None:
    path = written(tmp_path)
    path.write_bytes(damage + path.read_bytes())
    assert ReplyStore(tmp_path).known == REPLIES


def test_a_changed_character_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"num_tokens": 2', b'"num_tokens": 9'))
    assert ReplyStore(tmp_path).known.keys() == REPLIES.keys() - {"request 2"}


def test_digests_differ_by_all_that_a_reply_depends_on() -> None:
    given = [("text", [1, 2], {"t": 0}, 0), ("score", [1, 2], {"t": 0}, 0), ("text", [1], {"t": 0}, 0)]
    given += [("text", [1, 2], {"t": 1}, 0), ("text", [1, 2], {"t": 0}, 1), ("text", "a\ud800", {}, 0)]
    assert len({request_digest(*one) for one in given}) == len(given)
    assert request_digest("text", [1], {"a": 1, "b": 2}) == request_digest("text", [1], {"b": 2, "a": 1})
