"""A rank's record: its last words, on a disk that has little room, and who failed first."""

import json
import os
from pathlib import Path

import pytest

from glmforge_ops.jobs.ranks import record as record_module
from glmforge_ops.jobs.ranks.record import FIRST_FAILURE, NUM_LAST_WORDS, RecordOfRank, mark_failure, write_record


def a_record(path: Path, rank: int = 0) -> RecordOfRank:
    return RecordOfRank(path, rank, 0, "a", "a", began=1.0, status=1, ended=2.0)


def test_empty_lines_are_no_last_words(tmp_path: Path) -> None:
    record = a_record(tmp_path / "r.json")
    record.say([f"line {number}" for number in range(100)])
    record.say(["", "  ", "x" * 5000, ""])
    words = record.content()["last_words"]
    assert (len(words), words[0], words[-1]) == (NUM_LAST_WORDS, "line 61", "x" * 1000)


def test_last_words_are_given_up_before_the_record_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        if os.fstat(file).st_size > 1000:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(record_module.os, "fsync", full)
    record = a_record(tmp_path / "r.json")
    record.say(["x" * 900, "y" * 900])
    assert write_record(record.path, record.content())
    found = json.loads(record.path.read_text())
    assert (found["status"], found["last_words"]) == (1, [])
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_the_first_failure_stays_the_first(tmp_path: Path) -> None:
    for rank in (3, 1):
        mark_failure(tmp_path, a_record(tmp_path / "r.json", rank).content())
    assert json.loads((tmp_path / FIRST_FAILURE).read_text())["rank"] == 3
