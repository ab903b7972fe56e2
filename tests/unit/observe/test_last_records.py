"""The ends of JSONL files: what is read of them, and what damage does."""

import json
from pathlib import Path

import pytest

from glmforge.observe.record_files import END_BYTES, RunFileError, last_records, newest_records


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_no_file_has_no_records(file: Path) -> None:
    assert last_records(file) == list(newest_records(file)) == []


def test_a_line_that_was_cut_is_left_out(file: Path) -> None:
    file.write_text('{"n": 1}\n{"n": 2}\n{"n": ')
    assert last_records(file) == [{"n": 1}, {"n": 2}]
    assert list(newest_records(file)) == [{"n": 2}, {"n": 1}]


def test_another_damaged_line_is_an_error_or_left_out(file: Path) -> None:
    file.write_bytes(b'{"n": 1}\n\xff\n[3]\n{"n": 4}\n')
    with pytest.raises(RunFileError, match="is corrupt; delete that line"):
        last_records(file)
    assert list(newest_records(file)) == [{"n": 4}, {"n": 1}]


def test_only_the_end_is_read(file: Path) -> None:
    lines = [json.dumps({"n": number, "text": "x" * 100}) + "\n" for number in range(2000)]
    file.write_text("damaged\n" + "".join(lines))
    numbers = [record["n"] for record in last_records(file)]
    assert numbers == list(range(numbers[0], 2000))
    assert END_BYTES - 2 * len(lines[-1]) < sum(map(len, lines[numbers[0] :])) <= END_BYTES
    assert [record["n"] for record in newest_records(file)] == numbers[::-1]


def test_only_records_with_one_of_the_words(file: Path) -> None:
    file.write_text('{"event": "a"}\n{"event": "b"}\n{"a": 0}\n{"event": "about"}\n')
    assert list(newest_records(file, "a", "c")) == [{"a": 0}, {"event": "a"}]
