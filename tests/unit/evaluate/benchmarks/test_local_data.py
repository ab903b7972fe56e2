"""Benchmark files from outside: read, or refused in a line that names them."""

import gzip
import io
import json
import os
import zipfile

import pytest

from glmforge.errors import DataError
from glmforge.evaluate.benchmarks import local_data
from glmforge.evaluate.benchmarks.local_data import Source, digest_of, read_archive, read_rows

FIELDS = {"question": str, "answer": (str, int)}
GOOD = b'{"question": "1 + 1", "answer": 2, "more": null}\n'


def damaged_gz():
    content = bytearray(gzip.compress(os.urandom(1000), mtime=0))
    content[100] ^= 0xFF
    return bytes(content)


def broken_stream():
    return gzip.compress(GOOD, mtime=0)[:10] + b"\xff" * 40


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl.gz", gzip.compress(GOOD * 50, mtime=0)[:-20], "damaged file"),
        ("rows.jsonl.gz", damaged_gz(), "damaged file"),
        ("rows.jsonl.gz", broken_stream(), "damaged file"),
        ("rows.jsonl.gz", GOOD, "damaged file"),
        ("rows.jsonl", GOOD + b"\xff\xfe\n", "not UTF-8"),
        ("rows.jsonl", GOOD + b'{"question": "1"}\n', "rows.jsonl:2: field 'answer'"),
        ("rows.jsonl", b'{"question": 3, "answer": 2}\n', "field 'question'"),
        ("rows.jsonl", b'{"question": "", "answer": NaN}\n', "NaN"),
        ("rows.jsonl", b"[1, 2]\n", "rows.jsonl:1"),
        ("rows.jsonl", b'{"question": "1\n', "not valid JSON"),
        ("rows.jsonl", b'{"a": ' * 5000, "JSON"),
        ("rows.jsonl", b"", "no rows"),
        ("rows.json", b'{"rows": []}', "expected a list"),
        ("rows.json", b"[[]]", "row 1: expected an object"),
        ("rows.json", b"1e999", "JSON"),
    ],
)
def test_hostile_rows(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as refusal:
        read_rows(path, FIELDS)
    text = str(refusal.value)
    assert message in text
    assert str(path) in text
    assert "\n" not in text
    assert len(text) < 500 + len(str(path))


def test_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(local_data, "MAX_FILE_BYTES", 10_000)
    bomb = tmp_path / "rows.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * 10_001))
    with pytest.raises(DataError, match="more than 10,000 bytes"):
        read_rows(bomb, FIELDS)
    archive = _zip(tmp_path, {f"{name}.csv": b"0" * 4000 for name in "abc"})
    with pytest.raises(DataError, match="more than 10,000 bytes"):
        list(read_archive(archive))


def test_good_rows(tmp_path):
    row = json.loads(GOOD)
    for name, content in (
        ("rows.jsonl", GOOD + b"\n" + GOOD),
        ("rows.jsonl.gz", gzip.compress(GOOD + GOOD, mtime=0)),
        ("rows.json", json.dumps({"examples": [row, row]}).encode()),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert read_rows(path, FIELDS) == [row, row]
    line = tmp_path / "line.jsonl"  # a separator of lines for Python, none for JSON
    line.write_text('{"question": "a\u2028b\x85", "answer": 1}\n', encoding="utf-8")
    assert read_rows(line, FIELDS)[0]["question"] == "a\u2028b\x85"
    assert digest_of([row]) != digest_of([row | {"answer": 3}])


def _zip(tmp_path, members, mangle=lambda content: content):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    path = tmp_path / "data.zip"
    path.write_bytes(mangle(content.getvalue()))
    return path


def test_archive(tmp_path):
    path = _zip(tmp_path, {"b.csv": '"1,\n2",é\n', "a.csv": "x\n", "c.txt": "no"})
    assert list(read_archive(path)) == [("a.csv", [["x"]]), ("b.csv", [["1,\n2", "é"]])]


@pytest.mark.parametrize(
    ("member", "mangle"),
    [
        (b"a,b\n" * 100, lambda content: content[:-30]),
        (b"a,b\n" * 100, lambda content: content[:40] + b"\xff\xff\xff" + content[43:]),
        (b"a,b\n" * 100, lambda content: content.replace(b"\x14\x00\x00\x00\x08\x00", b"\x14\x00\x00\x00\x63\x00")),
        (b"a,b\n" * 100, lambda content: content.replace(b"\x14\x00\x00\x00\x08\x00", b"\x14\x00\x01\x00\x08\x00")),
        (b"a,\xff\n", lambda content: content),
        (b"a" * 200_000, lambda content: content),
        (b"", lambda _: b"no archive"),
    ],
    ids=["no directory", "damaged stream", "unknown compression", "encrypted", "not UTF-8", "huge field", "no zip"],
)
def test_hostile_archive(tmp_path, member, mangle):
    path = _zip(tmp_path, {"a.csv": member}, mangle)
    with pytest.raises(DataError, match="damaged archive") as refusal:
        list(read_archive(path))
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_find(tmp_path):
    source = Source(("first.jsonl", "second.jsonl"), "https://example.org/data")
    for name in ("first.jsonl", "directory"):
        (tmp_path / name).mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "second.jsonl").symlink_to("gone")
    (tmp_path / "file").write_bytes(GOOD)
    for directory, message in (
        (None, r"needs its data; put first.jsonl \(https://example.org/data\)"),
        (tmp_path, r"has no first.jsonl or second.jsonl; get it from https://example.org/data"),
        (tmp_path / "gone", "no such directory"),
        (tmp_path / "file", "no such directory"),
        (tmp_path / "loop", "loop"),
    ):
        with pytest.raises(DataError, match=message) as refusal:
            source.find(directory, "gsm8k")
        assert "\n" not in str(refusal.value)
    (tmp_path / "second.jsonl").unlink()
    (tmp_path / "second.jsonl").symlink_to("file")
    assert source.find(tmp_path, "gsm8k") == tmp_path / "second.jsonl"
