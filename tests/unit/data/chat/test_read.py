"""The same records from every kind of file, each with its place."""

import gzip
import json

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from glmforge.data.chat.read import read_records
from glmforge.data.chat.records import conversation_of
from glmforge.errors import DataError

RECORDS = [
    {"messages": [{"role": "user", "content": "Größe?"}, {"role": "assistant", "content": "1,80 m\n"}]},
    {
        "messages": [
            {"role": "user", "content": "]} , ["},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": json.dumps({"a": None})}}],
            },
        ]
    },
]
LINES = "\n\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS).encode()
ARRAY = json.dumps(RECORDS, indent=1).encode()


def write_parquet(path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist([r | {"other": 1} for r in RECORDS]), path)


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.jsonl", LINES, [1, 3]),
        ("a.json", LINES, [1, 3]),
        ("a.jsonl.gz", gzip.compress(b"\n" + LINES, mtime=0), [2, 4]),
        ("a.jsonl.zst", zstandard.compress(LINES), [1, 3]),
        ("a.json", ARRAY, [2, 14]),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES, [1, 3]),
        ("a.json", b"\xef\xbb\xbf" + ARRAY, [2, 14]),
        ("a.jsonl", b"\n [ " + b",".join(LINES.split(b"\n\n")) + b"]\n", [2, 2]),
        ("a.json.gz", gzip.compress(ARRAY, mtime=0), [2, 14]),
        ("a.parquet", None, [1, 2]),
    ],
)
def test_records_and_their_places(tmp_path, name, content, places):
    path = tmp_path / name
    write_parquet(path) if content is None else path.write_bytes(content)
    found = list(read_records([path]))
    assert [record.where for record in found] == [f"{path}:{place}" for place in places]
    assert [conversation_of(record.parse()) for record in found] == [conversation_of(record) for record in RECORDS]


def test_a_directory_is_all_its_files_by_name(tmp_path):
    for name in ("b.jsonl", "a/c.json", ".hidden.jsonl", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(LINES)
    places = [record.where for record in read_records([tmp_path])]
    assert places == [f"{tmp_path}/{name}:{line}" for name in ("a/c.json", "b.jsonl") for line in (1, 3)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", r"a.jsonl:1:1: not valid JSON"),
        (b"3", "a.jsonl:1: must contain one JSON object, not 3"),
        (b'{"messages": "\xff"}', r"a.jsonl:1: not UTF-8 text \(byte 14 of the line\)"),
        (b'{"messages": "\\ud800"}', "half of a surrogate pair"),
        (b'{"messages": NaN}', "NaN"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "levels deep"),
    ],
)
def test_a_line_that_is_no_record_does_not_stop_the_others(tmp_path, line, complaint):
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b"\n" + LINES)
    first, *others = read_records([path])
    with pytest.raises(DataError, match=complaint):
        first.parse()
    assert [conversation_of(record.parse()) for record in others] == [conversation_of(record) for record in RECORDS]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.json", ARRAY[:-1], "a.json:14: not valid JSON: the array is not closed"),
        ("a.json", b"[1 2]", "not closed"),
        ("a.json", b"[1,]", "not valid JSON"),
        ("a.json", b"[" * 100_000, "not valid JSON"),
        ("a.json", b"[\xff]", "not UTF-8"),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0)[:-9], "cannot be read"),
        ("a.jsonl.gz", gzip.compress(b" " * (17 << 20), 1, mtime=0), r"a\.jsonl\.gz: a line of over 16,777,216 bytes"),
        ("a.parquet", b"PAR1", "not readable as Parquet"),
        ("a.txt", LINES, r"conversation file; supported are \.jsonl, \.json, \.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_on(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        list(read_records([tmp_path / name]))


def test_a_missing_file_and_an_empty_directory(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        list(read_records([tmp_path / "nowhere.jsonl"]))
    with pytest.raises(DataError, match="contains no conversation files"):
        list(read_records([tmp_path]))


def test_a_table_without_conversations(tmp_path):
    parquet.write_table(pyarrow.table({"text": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column of conversations \(there are: text\)"):
        list(read_records([tmp_path / "a.parquet"]))
