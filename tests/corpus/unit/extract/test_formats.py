"""HTTP messages, PDF lines, issues, inputs, and compressed files."""

import gzip
import random
import zlib
from pathlib import Path

import pytest
import zstandard
from pydantic import ValidationError

from glmforge.data.documents.compression import chunks_of
from glmforge.errors import DataError
from glmforge_corpus.extract.inputs import Input, SourceFile, group, list_files
from glmforge_corpus.extract.issues import issue_text
from glmforge_corpus.extract.jsonl import line_blocks
from glmforge_corpus.extract.pdf import pages_to_text
from glmforge_corpus.extract.web import parse_message

BODY = b"<html>" + b"body " * 100


def message(headers, body):
    return b'HTTP/1.1 200 OK\r\nContent-Type: Text/HTML; Charset="UTF-8"\r\n' + headers + b"\r\n" + body


def chunked(body):
    return b"".join(b"%x;q=1\r\n%s\r\n" % (len(p), p) for p in (body[:7], body[7:300], body[300:])) + b"0\r\n\r\n"


def deflate_raw(body):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"", BODY),
        (b"Content-Encoding: gzip\r\n", gzip.compress(BODY, mtime=0)),
        (b"content-encoding: x-gzip\r\n", gzip.compress(BODY, mtime=0)),
        (b"Content-Encoding: gzip\r\n", BODY),  # unpacked by the crawler, header left
        (b"Content-Encoding: deflate\r\n", zlib.compress(BODY)),
        (b"Content-Encoding: deflate\r\n", deflate_raw(BODY)),
        (b"Transfer-Encoding: chunked\r\n", chunked(BODY)),
        (b"Transfer-Encoding: chunked\r\n", BODY),
        (b"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n", chunked(gzip.compress(BODY, mtime=0))),
    ],
)
def test_http_messages(headers, body):
    for data in (message(headers, body), message(headers, b"").replace(b"\r\n", b"\n") + body):
        parsed = parse_message(data, 1 << 20)
        assert parsed == (200, "text/html", "UTF-8", BODY)


def test_http_limits_and_nonsense():
    bomb = message(b"Content-Encoding: gzip\r\n", gzip.compress(b"\0" * 50_000_000, mtime=0))
    assert len(parse_message(bomb, 1000).body) == 1001
    assert parse_message(b"<html>\r\n\r\n", 1000) is None
    assert parse_message(b"HTTP/1.1 200 OK\r\nno end", 1000) is None
    assert parse_message(b"HTTP/1.1 abc\r\n\r\nx", 1000).status == 0
    cut = message(b"Content-Encoding: gzip\r\n", gzip.compress(bytes(random.Random(0).randbytes(9000)), mtime=0)[:5000])
    assert 0 < len(parse_message(cut, 1 << 20).body) < 9000


def test_pdf_lines():
    words = ["river", "road", "house", "garden"]
    pages = [
        [
            "Annual Report",
            f"At the {word}: the first para-",
            f"graph of the {word} goes on over the width of the page and",
            f"ends at the {word}.",
            f"A second begins at the {word} and also runs over the width",
            f"and on to the page after the {word}",
            f"Page {i} of 4",
        ]
        for i, word in enumerate(words)
    ]
    text = pages_to_text(pages)
    assert "Annual Report" not in text
    assert "Page" not in text
    for word in words:
        first = f"the first paragraph of the {word} goes on over the width of the page and ends at the {word}."
        assert first in text
    assert text.split("\n\n")[1].startswith(
        "A second begins at the river and also runs over the width and on to the page"
    )


def test_pdf_keeps_titles_of_short_documents_and_real_hyphens():
    assert (
        pages_to_text([["Title", "", "Body of text with UTF-", "8 and well-", "known words"]])
        == "Title\n\nBody of text with UTF- 8 and wellknown words"
    )
    assert pages_to_text([[]]) == ""


def test_issues():
    issue = {
        "title": "Crash", "body": "It crashes.", "user": {"login": "ann"}, "number": 3,
        "comments": [{"user": {"login": "bob"}, "body": "Fixed."}, "thanks", {"body": None}],
        "files": [{"filename": "a.py", "patch": "@@ -1 +1 @@\n-x\n+y"}],
    }  # fmt: skip
    assert (
        issue_text(issue)
        == "# Crash\n\nann:\nIt crashes.\n\nbob:\nFixed.\n\nthanks\n\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y"
    )
    assert issue_text({"message": "Fix", "diff": "diff --git a b\n"}) == "Fix\n\ndiff --git a b"
    assert issue_text({"number": 1}) == ""


def source(path, **options):
    return Input.model_validate({"source": "s", "path": path, **options})


def test_files_of_an_input(tmp_path):
    for name in ("b/z.jsonl.gz", "b/a.html", "c.PDF", "x.bin", ".hidden/x.txt", "b/.y.txt", "d.warc.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    found = list_files(source(tmp_path))
    assert [(file.name, file.format) for file in found] == [
        ("s/b/a.html", "html"), ("s/b/z.jsonl.gz", "jsonl"), ("s/c.PDF", "pdf"), ("s/d.warc.gz", "warc"),
    ]  # fmt: skip
    assert [file.name for file in list_files(source(tmp_path / "b/a.html"))] == ["s/a.html"]
    assert [file.name for file in list_files(source(f"{tmp_path}/*/*.html"))] == ["s/b/a.html"]
    assert [file.name for file in list_files(source(f"{tmp_path}/**/*.gz"))] == ["s/b/z.jsonl.gz", "s/d.warc.gz"]
    assert [file.format for file in list_files(source(tmp_path / "x.bin", format="text"))] == ["text"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("nothing", "no such file or directory"), ("*.zip", "no such"), ("x.bin", "no files of a known format")],
)
def test_inputs_that_are_not_there(tmp_path, name, complaint):
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(DataError, match=f"^/.*: {complaint}"):
        list_files(source(tmp_path / name))


def test_unknown_option():
    with pytest.raises(ValidationError, match="sauce"):
        Input.model_validate({"sauce": "s", "path": "x"})


def test_files_are_grouped_by_bytes():
    sizes = [5, 5, 1, 20, 3, 3, 3]
    files = [SourceFile(Path(str(i)), str(i), size, "text", source("x")) for i, size in enumerate(sizes)]
    assert [[file.size for file in task] for task in group(files, 10)] == [[5, 5], [1], [20], [3, 3, 3]]
    assert group(files, 10**9) == [tuple(files)]


def pack(name, data):
    if name.endswith(".gz"):
        return gzip.compress(data[:1000], mtime=0) + b"\0" * 10 + gzip.compress(data[1000:], mtime=0)
    return zstandard.compress(data[:1000]) + zstandard.compress(data[1000:]) if name.endswith(".zst") else data


@pytest.mark.parametrize("name", ["x", "x.gz", "x.tgz", "x.zst"])
def test_compressed_files(tmp_path, name):
    data = random.Random(0).randbytes(3_000_000)
    (tmp_path / name).write_bytes(pack(name.replace("tgz", "gz"), data))
    assert b"".join(chunks_of(tmp_path / name)) == data


@pytest.mark.parametrize("name", ["x.gz", "x.zst"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "flip"])
def test_what_is_before_damage_is_read(tmp_path, name, damage):
    data = random.Random(0).randbytes(3_000_000)
    packed = pack(name, data)
    packed = {
        "cut": packed[:-1000],
        "garbage": packed + b"garbage",
        "flip": packed[:2_000_000] + b"\xff" * 99 + packed[2_000_000:],
    }[damage]
    (tmp_path / name).write_bytes(packed)
    parts = []
    with pytest.raises(DataError, match=name):
        parts.extend(chunks_of(tmp_path / name))
    got = b"".join(parts)
    assert data.startswith(got) or damage == "flip"  # stored blocks have no checksum of their own
    # All that was packed before the damage: random bytes are stored as they are.
    assert (
        len(got) >= {"cut": 2_990_000, "garbage": 3_000_000, "flip": 1_990_000 if name == "x.gz" else 1_700_000}[damage]
    )


def test_chunks_are_small_whatever_a_file_expands_to(tmp_path):
    for name in ("x.gz", "x.zst"):
        (tmp_path / name).write_bytes(pack(name, b"a" * 100_000_000))
        assert max(map(len, chunks_of(tmp_path / name))) <= 1 << 20


def test_lines_in_blocks():
    rng = random.Random(0)
    for _ in range(50):
        lines = [b"x" * rng.choice([0, 1, 5, 30, 200]) for _ in range(rng.randrange(1, 40))]
        data = b"\n".join(lines)
        chunks = [data[i : i + 7] for i in range(0, len(data), 7)]
        blocks = list(line_blocks(chunks, 1 << 20))
        assert b"".join(block.data for block in blocks) == data
        for block in blocks:
            assert block.number == 1 + data[: data.index(block.data)].count(b"\n")
