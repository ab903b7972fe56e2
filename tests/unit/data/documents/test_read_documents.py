import gzip
import json
import sys

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from glmforge.data.documents.read import MAX_SOURCE_BYTES, read_documents
from glmforge.errors import DataError
from glmforge.extras import MissingPackageError

RECORDS = [{"text": "one"}, {"text": "zwei ü"}, {"text": ""}, {"text": "four\n"}]
TEXTS = ["one", "zwei ü", "four\n"]
JSONL = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode()


def write(directory, name, data):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def texts_of(*args, **kwargs):
    return [document.text for document in read_documents(*args, **kwargs)]


def two_zstandard_frames(data):
    compress = zstandard.ZstdCompressor().compress
    return compress(data[:20]) + compress(data[20:])


@pytest.mark.parametrize(
    ("name", "encode"),
    [
        ("c.jsonl", bytes),
        ("c.jsonl", lambda data: data.rstrip(b"\n")),
        ("c.jsonl", lambda data: data.replace(b"\n", b"\r\n\r\n")),
        ("c.jsonl.gz", gzip.compress),
        ("c.jsonl.gz", lambda data: gzip.compress(data[:20], mtime=0) + gzip.compress(data[20:])),
        ("c.jsonl.zst", zstandard.ZstdCompressor().compress),
        ("c.jsonl.zst", two_zstandard_frames),
    ],
)
def test_json_lines(tmp_path, name, encode):
    path = write(tmp_path, name, encode(JSONL))
    assert texts_of(path) == TEXTS


def test_parquet(tmp_path):
    table = pyarrow.table({"n": [1, 2, 3, 4], "text": [record["text"] for record in RECORDS]})
    parquet.write_table(table, tmp_path / "c.parquet", row_group_size=2)
    assert texts_of(tmp_path / "c.parquet") == TEXTS


def test_text_file_is_one_document(tmp_path):
    path = write(tmp_path, "book.txt", "a\r\nb\n\nü".encode())
    (document,) = read_documents(path)
    assert (document.id, document.text, document.source) == ("book.txt", "a\r\nb\n\nü", str(path))


def test_long_lines_cross_chunks(tmp_path):
    long = {"text": "x" * 3_000_000}
    path = write(tmp_path, "c.jsonl", JSONL + json.dumps(long).encode() + b"\n" + JSONL)
    assert texts_of(path) == [*TEXTS, long["text"], *TEXTS]


def test_text_field(tmp_path):
    path = write(tmp_path, "c.jsonl", b'{"content": "a", "text": "b"}')
    assert texts_of(path, text_field="content") == ["a"]


def test_ids_number_the_records_and_not_the_machine(tmp_path):
    write(tmp_path / "one" / "corpus", "part/c.jsonl", JSONL)
    write(tmp_path / "two" / "copy", "part/c.jsonl", JSONL)
    ids = [document.id for document in read_documents(tmp_path / "one" / "corpus")]
    assert ids == ["part/c.jsonl:1", "part/c.jsonl:2", "part/c.jsonl:4"]
    assert ids == [document.id for document in read_documents(tmp_path / "two" / "copy")]


def test_directory_is_read_recursively_in_sorted_order(tmp_path):
    for name in ("b/z.py", "b/a.md", "a.c", "c.txt", "B.rs", "e/x.py", "A/x.py", "b/b/x.py"):
        write(tmp_path, name, name.encode())
    write(tmp_path, "d.jsonl", b'{"text": "record"}')
    write(tmp_path, ".git/config.py", b"hidden directory")
    write(tmp_path, ".hidden.py", b"hidden")
    write(tmp_path, "program.exe", b"unknown suffix")
    write(tmp_path, "binary.py", b"a\0b")
    write(tmp_path, "table.py", b"x" * (MAX_SOURCE_BYTES + 1))
    write(tmp_path, "empty.py", b"")
    assert texts_of(tmp_path) == ["B.rs", "a.c", "c.txt", "record", "A/x.py", "b/a.md", "b/z.py", "b/b/x.py", "e/x.py"]


def test_large_texts_are_read(tmp_path):
    write(tmp_path, "large.txt", b"x" * (MAX_SOURCE_BYTES + 1))
    named = write(tmp_path / "sub", "table.py", b"x" * (MAX_SOURCE_BYTES + 1))
    assert len(texts_of(tmp_path)) == 1
    assert len(texts_of(named)) == 1


def test_paths_are_read_in_the_order_given_and_as_often_as_asked(tmp_path):
    paths = [write(tmp_path, name, name.encode()) for name in ("z.txt", "a.txt")]
    corpus = read_documents(paths)
    assert [[document.text for document in corpus] for _ in range(2)] == [["z.txt", "a.txt"]] * 2


BAD_LINES = [
    (b'{"text": "gr\xfc\xdf"}', r"c.jsonl, line 2: invalid UTF-8 at byte offset 12 \(0xfc\)"),
    (b'{"text": "x"', r"c.jsonl, line 2: not JSON"),
    (b"[" * 100_000, r"c.jsonl, line 2: not JSON"),
    (b'["text"]', r"c.jsonl, line 2: not a JSON object but list"),
    (
        b'{"txt": "x", "id": 1}',
        r"c.jsonl, line 2: no field 'text' \(there are: txt, id\); select one with "
        r"--text-field",
    ),
    (b'{"text": null}', r"c.jsonl, line 2: 'text' is NoneType, not text"),
    (b'{"text": "\\ud800"}', "c.jsonl, line 2: 'text' has a lone surrogate at position 0: fix"),
]


@pytest.mark.parametrize(("line", "complaint"), BAD_LINES)
def test_bad_records_stop_or_are_left_out_and_counted(tmp_path, line, complaint):
    path = write(tmp_path, "c.jsonl", b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    with pytest.raises(DataError, match=complaint):
        texts_of(path)
    corpus = read_documents(path, on_error="skip")
    for _ in range(2):  # the count is of one reading
        assert [document.text for document in corpus] == ["a", "b"]
        assert corpus.num_skipped == 1
        (problem,) = corpus.problems
        with pytest.raises(DataError, match=complaint):
            raise DataError(problem)


def truncated_zstandard(data):
    compressed = zstandard.ZstdCompressor().compress(data)
    return compressed[:-4]


BAD_FILES = [
    ("c.txt", b"a\nb\xff", r"c.txt: invalid UTF-8 at byte offset 3 \(0xff\)"),
    ("c.jsonl.gz", b"no gzip", r"c.jsonl.gz: cannot be read \(Not a gzipped file"),
    ("c.jsonl.gz", gzip.compress(JSONL, mtime=0)[:-12], r"c.jsonl.gz: cannot be read"),
    ("c.jsonl.zst", b"no zstandard", r"c.jsonl.zst: not readable as Zstandard"),
    ("c.jsonl.zst", truncated_zstandard(JSONL * 100), "c.jsonl.zst: ends in the middle of a Zstandard frame"),
    ("c.parquet", b"no parquet", r"c.parquet: not readable as Parquet"),
]


@pytest.mark.parametrize(("name", "data", "complaint"), BAD_FILES)
def test_bad_files(tmp_path, name, data, complaint):
    bad = write(tmp_path, name, data)
    good = write(tmp_path, "good.txt", b"good")
    with pytest.raises(DataError, match=complaint):
        texts_of([bad, good])
    corpus = read_documents([bad, good], on_error="skip")
    assert "good" in [document.text for document in corpus]
    assert corpus.num_skipped == 1


def test_missing_column(tmp_path):
    parquet.write_table(pyarrow.table({"a": ["x"], "b": ["y"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c.parquet: no column 'text' \(there are: a, b\)"):
        texts_of(tmp_path / "c.parquet")


@pytest.mark.parametrize("package", ["pyarrow", "zstandard"])
def test_missing_package_is_never_skipped(tmp_path, monkeypatch, package):
    name = {"pyarrow": "c.parquet", "zstandard": "c.jsonl.zst"}[package]
    path = write(tmp_path, name, b"anything")
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"{name}: needs the package '{package}', which is not installed: pip install 'glmforge\[data\]'"
    with pytest.raises(MissingPackageError, match=message):
        texts_of(path, on_error="skip")


@pytest.mark.parametrize("data", [b"", b"\n\n", b'{"text": ""}\n'])
def test_empty_corpus(tmp_path, data):
    path = write(tmp_path, "c.jsonl", data)
    with pytest.raises(DataError, match=r"c.jsonl: no documents: the files are empty"):
        texts_of(path)
    with pytest.raises(DataError, match="no documents"):
        texts_of(write(tmp_path / "d", "x.exe", b"x").parent)


def test_corpus_of_bad_records_only(tmp_path):
    path = write(tmp_path, "c.jsonl", b"a\nb\n")
    with pytest.raises(DataError, match=r"could be read \(2 skipped\); the first: .*c\.jsonl, line 1: not JSON"):
        texts_of(path, on_error="skip")


def test_missing_path(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such file"):
        read_documents([tmp_path / "nowhere"])
