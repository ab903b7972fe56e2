"""The stage on files: every kind of damage is reported, the rest is read, and the result is the same every time."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from fastwarc.stream_io import GzipWriter
from fastwarc.warc import WarcRecord, WarcRecordType
from pyarrow import parquet

from glmforge.data.documents.batch import BatchWriter, DocumentBatch, concatenate, read_batches
from glmforge.errors import DataError
from glmforge_corpus.extract.stage import Extract
from glmforge_corpus.pipeline.run import run_stages
from glmforge_corpus.pipeline.stage import DOCUMENTS, QUARANTINE, StageContext
from glmforge_corpus.pipeline.task import PlannedStep, run_task

PROSE = "The river rose in the night, and by morning the lower road was gone; nobody had heard it go. "
SHARED = Path(__file__).resolve().parents[5] / "shared" / "data" / "web"


class Run:
    """The stage carried out: documents, what was put aside, and counts."""

    def __init__(self, directory, *inputs, **options):
        inputs = [{"source": "s", **given} for given in inputs]
        stage = Extract.model_validate({"inputs": inputs, **options}).check()
        (step,) = stage.steps(StageContext(directory, ()))
        planned = PlannedStep(step, directory, "fingerprint")
        self.directories, self.rejected, self.counts, batches = [], [], {}, []
        self.quarantined = Counter()
        for task in range(step.num_tasks):
            run_task(planned, task)
            here = planned.task_directory(task)
            self.directories.append(here)
            batches += list(read_batches(here / DOCUMENTS))
            statistics = planned.statistics(task)
            self.counts |= statistics.counts
            if (here / QUARANTINE).exists():
                lines = [json.loads(line) for line in (here / QUARANTINE).read_text().splitlines()]
                assert statistics.quarantined.keys() == {line["reason"] for line in lines}
                self.rejected += lines
            self.quarantined += statistics.quarantined
            assert statistics.written.documents == sum(len(b) for b in read_batches(here / DOCUMENTS))
        batch = concatenate(batches)
        self.ids, self.texts = batch.ids, batch.texts
        self.metadata = [json.loads(value) if value else None for value in batch.table.column("metadata").to_pylist()]
        self.languages = batch.table.column("language").to_pylist()
        self.reasons = [line["reason"] for line in self.rejected]
        self.wheres = [line["where"] for line in self.rejected]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 5000, "not JSON"),
        (b'{"txt": "x"}', "no such field"),
        (b'{"text": "gr\xfc\xdf"}', "invalid UTF-8"),
        (b'{"text": "\\ud800"}', "lone surrogate"),
    ],
)
def test_bad_lines_are_put_aside_and_the_others_read(tmp_path, line, reason):
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a", "n": 1}\n' + line + b'\n\n{"n": "x", "text": "b\\u00e9"}')
    run = Run(tmp_path / "out", {"path": tmp_path / "c.jsonl"})
    assert (run.ids, run.texts) == (["s/c.jsonl:1", "s/c.jsonl:4"], ["a", "bé"])
    assert (run.reasons, run.wheres) == ([reason], ["s/c.jsonl:2"])


def test_record_that_is_broken_over_lines_is_no_record(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a"}\n{"text":\n"b"}\n{"text": "c"}\n')
    run = Run(tmp_path / "out", {"path": tmp_path / "c.jsonl"})
    assert run.texts == ["a", "c"]
    assert run.wheres == ["s/c.jsonl:2", "s/c.jsonl:3"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_json_lines(tmp_path, suffix):
    records = [{"text": f"text {i} " * 300, "id": f"d{i}", "url": f"u{i}", "n": i} for i in range(8000)]
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    packed = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix](data)
    path = tmp_path / f"c.jsonl{suffix}"
    path.write_bytes(packed)
    plain = Run(tmp_path / "1", {"path": path, "language": "en"})
    assert plain.texts == [record["text"] for record in records]
    assert plain.ids == [f"s/{path.name}:{i + 1}" for i in range(8000)]
    assert set(plain.languages) == {"en"}
    named = Run(tmp_path / "2", {"path": path, "id_field": "id", "metadata": ["url", "n", "none"]})
    assert named.ids == [record["id"] for record in records]
    assert named.metadata[7999] == {"url": "u7999", "n": 7999}
    assert named.texts == plain.texts


@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst"])
def test_line_of_a_gigabyte_is_left_out_in_little_memory(tmp_path, name):
    path = tmp_path / name
    size = 1 << 26  # 64 MB stand for a gigabyte: the limit is what bounds the memory
    with {"c.jsonl": open, "c.jsonl.gz": gzip.open}.get(name, lambda path, mode: zstandard.open(path, mode))(
        path, "wb"
    ) as file:
        file.write(b'{"text": "first"}\n{"text": "')
        for _ in range(size >> 20):
            file.write(b"a" * (1 << 20))
        file.write(b'"}\n{"text": "last"}\n')
    run = Run(tmp_path / "out", {"path": path}, max_document_bytes=1 << 20)
    assert (run.texts, run.ids) == (["first", "last"], [f"s/{name}:1", f"s/{name}:3"])
    assert (run.reasons, run.wheres) == (["too long"], [f"s/{name}:2"])
    assert run.rejected[0]["record"].startswith('{"text": "aaa')


def jsonl(n):
    import random

    rng = random.Random(0)
    return "".join(json.dumps({"text": f"{i} {rng.random()}"}) + "\n" for i in range(n)).encode()


def test_chaos_of_files(tmp_path):
    data, directory = jsonl(20_000), tmp_path / "in"
    directory.mkdir()
    table = pa.table({"text": [f"row {i}" for i in range(1000)]})
    parquet.write_table(table, directory / "good.parquet")
    whole = (directory / "good.parquet").read_bytes()
    files = {
        "cut.jsonl.gz": gzip.compress(data)[:-5000],
        "cut.jsonl.zst": zstandard.compress(data)[:-5000],
        "corrupt.jsonl.gz": gzip.compress(data)[:100_000] + b"\0" * 100 + gzip.compress(data)[100_100:],
        "cut.parquet": whole[:-100],
        "empty.jsonl": b"",
        "empty.parquet": b"",
        "empty.txt": b"",
        "latin.txt": "grün".encode("latin-1"),
        "fine.txt": "\ufeffgrün".encode(),
        "wide.txt": "grün".encode("utf-16"),
        "bad.pdf": b"%PDF-1.4 nothing",
        "bad.warc.gz": b"\x1f\x8b\x08 nothing at all",
        "page.html": f"<p>{PROSE}</p>".encode(),
        "none.html": b"<html><nav><a href=x>y</a></nav></html>",
    }
    for name, content in files.items():
        (directory / name).write_bytes(content)
    run = Run(tmp_path / "out", {"path": directory})
    rejected = dict(zip(run.wheres, run.reasons, strict=True))
    for name in ("cut.jsonl.gz", "cut.jsonl.zst", "cut.parquet", "corrupt.jsonl.gz"):
        assert rejected[f"s/{name}"] == "damaged file"
    for name in ("empty.jsonl", "empty.parquet", "empty.txt"):
        assert rejected[f"s/{name}"] == "empty file"
    assert rejected["s/latin.txt"] == "invalid UTF-8"
    assert rejected["s/bad.pdf"] == "damaged PDF"
    assert rejected["s/none.html"] == "no main text"
    assert any(where.startswith("s/bad.warc.gz") for where in rejected)
    texts = dict(zip(run.ids, run.texts, strict=True))
    assert texts["s/fine.txt"] == texts["s/wide.txt"] == "grün"
    assert texts["s/page.html"] == PROSE.strip()
    assert texts["s/good.parquet:1000"] == "row 999"
    for name in ("cut.jsonl.gz", "cut.jsonl.zst", "corrupt.jsonl.gz"):
        read = [text for id_, text in texts.items() if id_.startswith(f"s/{name}:")]
        assert len(read) > 1000  # what came before the damage
        expected = [json.loads(line)["text"] for line in data.splitlines()]
        # gzip has no checksum before its end, so that damage itself may unpack to something.
        assert read[:1000] == expected[:1000]
        if not name.startswith("corrupt"):
            assert read == expected[: len(read)]


def test_parquet(tmp_path):
    path = tmp_path / "c.parquet"
    texts = [b"one", None, b"", b"  ", b"\xff", "vier ü".encode(), b"x" * 5000]
    parquet.write_table(
        pa.table({"text": pa.array(texts, pa.binary()), "key": list("abcdefg"), "n": range(7)}), path, row_group_size=3
    )
    run = Run(tmp_path / "1", {"path": path, "id_field": "key", "metadata": ["n"]}, max_document_bytes=4096)
    assert (run.ids, run.texts, run.metadata) == (["a", "f"], ["one", "vier ü"], [{"n": 0}, {"n": 5}])
    assert run.reasons == ["not text", "empty text", "empty text", "invalid UTF-8", "too long"]
    assert run.wheres == [f"s/c.parquet:{row}" for row in (2, 3, 4, 5, 7)]
    assert Run(tmp_path / "2", {"path": path}, max_document_bytes=4096).ids == ["s/c.parquet:1", "s/c.parquet:6"]


def test_documents_of_an_earlier_run_keep_what_is_known_of_them(tmp_path):
    def shard(name, **scores):
        texts, scores = ["one", " ", "vier ü"], {key: np.array(values) for key, values in scores.items()}
        batch = DocumentBatch.from_columns(
            [f"{name}:{n}" for n in range(3)], texts, ["web", "web", "books"], languages=["en", None, None],
            metadata=['{"url":"x"}', None, None], scores=scores,
        )  # fmt: skip
        path = tmp_path / f"{name}.parquet"
        with BatchWriter(path) as writer:
            writer.write(batch)
        return batch.table.take(pa.array([0, 2])).to_pylist()

    expected = shard("a", quality=[0.25, 0.5, 1.0]) + shard("b", quality=[0.0, 0.5, 0.75])
    other = shard("c")
    (tmp_path / "d.jsonl").write_text('{"text": "new"}\n')
    stage = Extract.model_validate({"inputs": [{"source": "s", "path": str(tmp_path), "language": "de"}]})
    shards, (statistics,) = run_stages([stage], tmp_path / ".out")
    found = [[row for batch in read_batches(path) for row in batch.table.to_pylist()] for path in shards]
    for row in expected + other:
        row["language"] = row["language"] or "de"
    new = {"id": "s/d.jsonl:1", "text": "new", "source": "s", "language": "de", "metadata": None}
    assert found == [expected, [*other, new]]
    assert statistics.quarantined == {"empty text": 3}
    assert Run(tmp_path / "ids", {"path": tmp_path / "a.parquet", "id_field": "text"}).ids == ["one", "vier ü"]


def test_parquet_with_a_damaged_row_group(tmp_path):
    path = tmp_path / "c.parquet"
    table = pa.table({"text": [f"row {i} " + "x" * (i % 50) for i in range(3000)]})
    parquet.write_table(
        table, path, row_group_size=1000, use_dictionary=False, compression="zstd", data_page_version="1.0"
    )
    group = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    middle = group.data_page_offset + group.total_compressed_size // 2
    data[middle : middle + 200] = b"\xff" * 200
    path.write_bytes(data)
    run = Run(tmp_path / "out", {"path": path})
    assert run.reasons == ["damaged row group"]
    assert run.wheres == ["s/c.parquet:1001-2000"]
    assert run.rejected[0]["detail"].startswith("1,000 records lost: ")
    assert run.quarantined == {"damaged row group": 1000}, "records are counted, not row groups"
    assert run.texts == table["text"].to_pylist()[:1000] + table["text"].to_pylist()[2000:]


@pytest.mark.parametrize(
    ("options", "detail"), [({"text_field": "x"}, "no column 'x'"), ({"text_field": "n"}, "is int64, not text")]
)
def test_parquet_without_the_field(tmp_path, options, detail):
    parquet.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "c.parquet")
    run = Run(tmp_path / "out", {"path": tmp_path / "c.parquet", **options})
    assert run.reasons == ["unsuitable file"]
    assert detail in run.rejected[0]["detail"]


def warc(records, compress):
    buffer = io.BytesIO()
    stream = GzipWriter(buffer) if compress else buffer
    starts = []
    for kind, body in records:
        starts.append(buffer.tell())
        record = WarcRecord()
        record.init_headers(content_length=len(body), record_type=kind)
        record.headers["WARC-Target-URI"] = f"http://x/{len(starts)}"
        record.set_bytes_content(body)
        record.write(stream)
        if compress:
            stream.flush()
    if compress:
        stream.close()
    return buffer.getvalue()


def response(body, headers="Content-Type: text/html", status="200 OK"):
    return f"HTTP/1.1 {status}\r\n{headers}\r\n\r\n".encode() + body


def page(i):
    return f"<title>{i}</title><p>{PROSE} Number {i}.</p>".encode()


@pytest.mark.parametrize("compress", [False, True])
def test_web_archive(tmp_path, compress):
    kind = WarcRecordType
    records = [
        (kind.warcinfo, b"x: y"), (kind.request, b"GET / HTTP/1.1\r\n\r\n"), (kind.response, response(page(1))),
        (kind.response, response(b"\x89PNG", "Content-Type: image/png")),
        (kind.response, response(page(3), status="404 Not Found")),
        (kind.conversion, "just text ü".encode()), (kind.response, b"not http"), (kind.conversion, b"\xff"),
        (kind.response, response(b"plain", "Content-Type: text/plain")),
    ]  # fmt: skip
    name = "a.warc.gz" if compress else "a.warc"
    (tmp_path / name).write_bytes(warc(records, compress))
    run = Run(tmp_path / "out", {"path": tmp_path / name})
    assert run.texts == [f"{PROSE}Number 1.", "just text ü", "plain"]
    assert run.ids == [f"s/{name}:{i}" for i in (1, 4, 7)]
    assert run.metadata[0]["title"] == "1"
    assert run.metadata[0]["url"] == "http://x/3"
    assert run.reasons == ["not an HTTP response", "invalid UTF-8"]
    assert run.counts == {"extract: warc: image/png": 1, "extract: warc: status 4xx": 1}


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("damage", ["cut", "garbage", "between"])
def test_damaged_web_archive(tmp_path, compress, damage):
    records = [(WarcRecordType.response, response(page(i) * 20)) for i in range(12)]
    pieces = [warc([record], compress) for record in records]
    if damage == "cut":
        pieces[11] = pieces[11][: len(pieces[11]) * 2 // 3]
    elif damage == "garbage":
        pieces[5] = bytes([*pieces[5][:40], *b"\xff" * (len(pieces[5]) - 40)])
    else:
        pieces.insert(6, b"?" * 50)
    (tmp_path / "a.warc").write_bytes(b"".join(pieces))
    run = Run(tmp_path / "out", {"path": tmp_path / "a.warc"})
    lost = {"cut": {11}, "garbage": {5}, "between": set()}[damage]
    found = {int(metadata["title"]) for metadata in run.metadata}
    assert found == set(range(12)) - lost
    assert run.reasons


def test_bytes_between_records_that_fastwarc_passes_over(tmp_path):
    pieces = [warc([(WarcRecordType.response, response(page(i)))], compress=False) for i in range(4)]
    lost = pieces[1].replace(b"WARC/1.1", b"\r\n" * 20 + b"WARC/1.1")
    (tmp_path / "a.warc").write_bytes(b"".join([pieces[0], lost, *pieces[2:]]))
    run = Run(tmp_path / "out", {"path": tmp_path / "a.warc"})
    assert [metadata["title"] for metadata in run.metadata] == list("0123")
    assert run.reasons == ["damaged record"]


LICENCE = """Permission is hereby granted, free of charge, to any person obtaining a copy of this software ...
The above copyright notice and this permission notice shall be included in all copies"""
PROJECT = {
    "LICENSE": LICENCE, "README.md": "# Project", "main.py": "import util\nprint(util.x)", "util.py": "x = 1",
    "gpl.py": "# SPDX-License-Identifier: GPL-3.0-only\n", "vendor/dep.py": "import nothing", "latin.py": b"# gr\xfcn",
}  # fmt: skip


def pack_project(path, files):
    data = {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in data.items():
                archive.writestr(f"project-1.0/{name}", content)
        return
    if "".join(path.suffixes) == "":
        for name, content in data.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
        return
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in data.items():
            entry = tarfile.TarInfo(f"project-1.0/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo("project-1.0/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    pack = {".gz": gzip.compress, ".tgz": gzip.compress, ".zst": zstandard.compress, ".tar": bytes}[path.suffix]
    path.write_bytes(pack(buffer.getvalue()))


@pytest.mark.parametrize("name", ["p", "p.zip", "p.tar", "p.tar.gz", "p.tgz", "p.tar.zst"])
def test_repository(tmp_path, name):
    (tmp_path / "in").mkdir()
    pack_project(tmp_path / "in" / name, PROJECT)
    run = Run(tmp_path / "1", {"path": tmp_path / "in", "format": "repositories"})
    assert run.ids == [f"s/{name}/{path}" for path in ("README.md", "main.py", "util.py")]
    assert run.languages == [None, "code", "code"]
    assert run.metadata[1] == {"licence": "MIT", "path": "main.py", "repository": name}
    assert run.reasons == ["invalid UTF-8"]
    assert run.counts == {
        "extract: repository file: licence GPL-3.0-only": 1,
        "extract: repository file: unknown kind": 1,
        "extract: repository file: vendored or built": 1,
    }
    whole = Run(tmp_path / "2", {"path": tmp_path / "in", "format": "repositories", "unit": "repository"})
    assert whole.ids == [f"s/{name}"]
    order = [line.removeprefix("File: ") for line in whole.texts[0].splitlines() if line.startswith("File: ")]
    assert order == ["README.md", "util.py", "main.py"]


@pytest.mark.parametrize(
    ("licence", "counted"),
    [("All rights reserved", "unknown"), ("GNU General Public License", "GPL"), (None, "missing")],
)
def test_repository_without_a_permissive_licence(tmp_path, licence, counted):
    files = {**PROJECT, "free.py": "# SPDX-License-Identifier: MIT\n", "LICENSE": licence}
    pack_project(tmp_path / "in" / "p", {name: text for name, text in files.items() if text is not None})
    run = Run(tmp_path / "1", {"path": tmp_path / "in", "format": "repositories"})
    assert run.ids == ["s/p/free.py"]
    assert run.counts[f"extract: repository: licence {counted}"] == 1
    anything = Run(tmp_path / "2", {"path": tmp_path / "in", "format": "repositories", "licences": []})
    assert "s/p/main.py" in anything.ids


def test_damaged_repository_archive(tmp_path):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.tar"
    pack_project(path, {**PROJECT, "zz.py": "x = 1\n" * 5000})
    path.write_bytes(path.read_bytes()[:-25_000])
    run = Run(tmp_path / "out", {"path": tmp_path / "in", "format": "repositories"})
    assert run.reasons == ["damaged archive", "invalid UTF-8"]
    assert "s/p.tar/main.py" in run.ids


def pdf(*pages):
    """A minimal file with some lines of text per page."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for i, lines in enumerate(pages):
        stream = b"BT /F1 12 Tf 50 700 Td 14 TL " + b" ".join(b"(%s) Tj T*" % line.encode() for line in lines) + b" ET"
        resources = b"/Contents %d 0 R/Resources<</Font<</F1 3 0 R>>>>" % (5 + 2 * i)
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]%s>>" % resources)
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream))
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    trailer = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table) + trailer


def test_pdf(tmp_path):
    pages = [
        [
            "Header of the paper",
            f"A line of text on page number {word} that is hyphen-",
            f"ated and ends here {word}.",
            str(i),
        ]
        for i, word in enumerate(["one", "two", "three"], 1)
    ]
    (tmp_path / "a.pdf").write_bytes(pdf(*pages))
    (tmp_path / "pictures.pdf").write_bytes(pdf([], []))
    encrypted = pdf(["secret"]).replace(
        b"trailer<<",
        b"trailer<</Encrypt<</Filter/Standard/V 1/R 2/O(" + b"o" * 32 + b")/U(" + b"u" * 32 + b")/P -1>>/ID[(x)(x)]",
    )
    (tmp_path / "locked.pdf").write_bytes(encrypted)
    run = Run(tmp_path / "out", {"path": tmp_path})
    assert run.texts == [
        " ".join(
            f"A line of text on page number {word} that is hyphenated and ends here {word}."
            for word in ("one", "two", "three")
        )
    ]
    assert run.metadata == [{"pages": 3}]
    assert dict(zip(run.wheres, run.reasons, strict=True)) == {
        "s/locked.pdf": "encrypted PDF",
        "s/pictures.pdf": "no text in PDF",
    }


def test_issues(tmp_path):
    lines = [
        b'{"title": "T", "body": "B", "number": 7}',
        b"{",
        b'{"x": 1}',
        b'[{"title": "A"}, {"message": "M", "patch": "@@"}]',
    ]
    (tmp_path / "i.jsonl").write_bytes(b"\n".join(lines))
    run = Run(tmp_path / "out", {"path": tmp_path / "i.jsonl", "format": "issues"})
    assert run.texts == ["# T\n\nB", "# A", "M\n\n@@"]
    assert run.ids == ["s/i.jsonl:1", "s/i.jsonl:4:1", "s/i.jsonl:4:2"]
    assert run.metadata[0] == {"number": 7}
    assert run.reasons == ["not JSON", "not an issue"]


def test_result_depends_on_the_files_alone(tmp_path):
    for where in ("1", "2"):
        (tmp_path / where).mkdir()
        for name in "cab":
            (tmp_path / where / f"{name}.jsonl").write_bytes(jsonl(100) + b"bad\n")
    runs = [Run(tmp_path / "out" / where, {"path": tmp_path / where}, shard_bytes=8000) for where in ("1", "2")]
    assert len(runs[0].directories) == 2
    for one, two in zip(runs[0].directories, runs[1].directories, strict=True):
        for name in (DOCUMENTS, QUARANTINE):
            assert (one / name).read_bytes() == (two / name).read_bytes()


def test_step_changes_with_names_and_sizes_of_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a")
    stage = Extract.model_validate({"inputs": [{"source": "s", "path": str(tmp_path)}]})

    def fingerprint():
        return pickle.dumps(stage.steps(StageContext(tmp_path, ())))

    first = fingerprint()
    assert fingerprint() == first
    (tmp_path / "a.txt").write_bytes(b"ab")
    second = fingerprint()
    assert second != first
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert fingerprint() not in (first, second)


def test_a_link_to_nowhere_is_no_file(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("one")
    (tmp_path / "raw" / "b.txt").symlink_to(tmp_path / "nowhere")
    stage = Extract.model_validate({"inputs": [{"source": "s", "path": str(tmp_path / "raw")}]})
    (shard,), _ = run_stages([stage], tmp_path / "out")
    assert concatenate(list(read_batches(shard))).texts == ["one"]


def test_missing_input_is_an_error_before_anything_runs(tmp_path):
    stage = Extract.model_validate({"inputs": [{"source": "s", "path": str(tmp_path / "nowhere")}]})
    with pytest.raises(DataError, match=r"^/.*nowhere: no such file"):
        stage.check()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real web archives are not on this machine")
@pytest.mark.parametrize(
    ("name", "documents"), [("warcfile.warc", 16), ("warcfile.warc.gz", 16), ("clueweb-quirk.warc.gz", 29)]
)
def test_real_web_archives(tmp_path, name, documents):
    run = Run(tmp_path / "out", {"path": SHARED / name})
    # Every response of these archives is a page; one without running text may be put aside.
    assert len(run.texts) + len(run.reasons) == documents
    assert len(run.texts) >= documents - 1
    assert not any("\ufffd" in text for text in run.texts)
