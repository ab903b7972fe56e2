"""JSON lines: what is taken and why the rest is put aside, and lines of any length from chunks of any size."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glmforge.errors import DataError
from glmforge_corpus.extract import jsonl
from glmforge_corpus.extract.inputs import Input, SourceFile
from glmforge_corpus.extract.jsonl import LineBlock, as_json_lines, line_blocks
from glmforge_corpus.extract.records import Context


def file(**options) -> SourceFile:
    source = Input(**{"source": "s", "path": Path("f.jsonl"), "id_field": "id"} | options)
    return SourceFile(Path("f.jsonl"), "s/f.jsonl", 1, "jsonl", source)


def read(data: bytes, source: SourceFile, max_document_bytes: int = 1 << 20):
    """(documents, what was put aside)."""
    aside: list[tuple[str, str, bytes, str]] = []
    context = Context(lambda *record: aside.append(record), lambda what: None, max_document_bytes)
    batch = jsonl._documents(LineBlock(7, data, data.count(b"\n")), source, context)
    return batch.table.to_pylist(), aside


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("12.50", ""),
        ("1" * 200, ""),
        ('{"a": [{"b": [[], {}]}]}', ""),
        ('"\\ud83d\\ude00"', ""),
        ("[" * 70 + "]" * 70, ""),
        ("1e999", "not JSON"),
        ("01", "not JSON"),
        ("NaN", "not JSON"),
        ("[1,]", "not JSON"),
        ('"a', "not JSON"),
        ('"\\ud83d"', "lone surrogate"),
        ("[" * 200_000 + "]" * 200_000, "not JSON"),
    ],
)
def test_a_field_that_nobody_asks_for_must_be_json_all_the_same(value, reason):
    line = f'{{"id": "1", "extra": {value}, "text": "été"}}'
    rows, aside = read(f'{{"id": "0", "text": "a"}}\n{line}\n{{"id": "2", "text": "b"}}'.encode(), file())
    assert [row["id"] for row in rows] == (["0", "2"] if reason else ["0", "1", "2"])
    assert [(why, where) for why, where, _, _ in aside] == ([(reason, "s/f.jsonl:8")] if reason else [])
    assert all("\n" not in detail for _, _, _, detail in aside)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"id": "1"}', "no such field"),
        (b'{"text": "a"}', "no such field"),
        (b'{"id": "1", "text": 3}', "not text"),
        (b'{"id": "", "text": "a"}', "not an id"),
        (b'{"id": "1", "text": " \\n\\t"}', "empty text"),
        (b'{"id": "1", "text": "\xff"}', "invalid UTF-8"),
        (b'{"id": "1", "text": "a"', "not JSON"),
        (b'{"id": "1", "text": "a"} {}', "not JSON"),
    ],
)
def test_a_line_that_is_no_document_is_put_aside_with_its_reason(line, reason):
    rows, aside = read(b'\n \r\n{"id": 10, "text": "a"}\r\n' + line, file())
    assert [(row["id"], row["text"]) for row in rows] == [("10", "a")]
    assert [(why, where) for why, where, _, _ in aside] == [(reason, "s/f.jsonl:10")]


def test_of_a_field_that_comes_twice_the_last_counts():
    rows, _ = read(b'{"text": 1, "id": "a", "te\\u0078t": "x", "id": -3}', file())
    assert [(row["id"], row["text"]) for row in rows] == [("-3", "x")]


def test_without_a_field_for_it_the_id_is_the_line():
    rows, _ = read(b'{"text": "a"}\n\n{"text": "b"}', file(id_field=None, metadata=["n"]))
    assert [row["id"] for row in rows] == ["s/f.jsonl:7", "s/f.jsonl:9"]


def test_a_text_that_is_too_long_is_put_aside():
    lines = [
        json.dumps({"id": str(n), "text": "é" * n}, ensure_ascii=n % 2 == 0) for n in (10, 499, 500, 501, 502, 1200)
    ]
    rows, aside = read("\n".join(lines).encode(), file(), max_document_bytes=1000)
    assert [row["id"] for row in rows] == ["10", "499", "500"]
    assert [(reason, where) for reason, where, _, _ in aside] == [("too long", f"s/f.jsonl:{n}") for n in (10, 11, 12)]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text('{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}\n', encoding="utf-8-sig")
    context = Context(None, None, 1 << 20)
    batches = list(jsonl.read_jsonl(replace(file(), path=path), context))
    assert [text for batch in batches for text in batch.texts] == ["a", "b"]


@pytest.mark.parametrize("chunk", [3, 64, 250, 499])
def test_a_line_that_is_too_long_is_told_whatever_the_chunks(chunk, monkeypatch):
    monkeypatch.setattr(jsonl, "BLOCK_BYTES", 500)
    lines = [b"a" * n for n in (10, 499, 500, 501, 3, 2000, 7, 0, 800)]
    data = b"\n".join(lines)
    blocks = list(line_blocks((data[i : i + chunk] for i in range(0, len(data), chunk)), 100))
    assert {block.number for block in blocks if block.data is None} == {4, 6, 9}
    whole = b"".join(block.data for block in blocks if block.data is not None)
    assert whole == b"".join(line + b"\n" for line in lines if len(line) <= 500)


RECORD_TEXTS = ("one", 'quote " and \\ back', "[{", "été\n中文", "}]" * 50)
RECORDS = [{"text": text, "n": [1, {"a": "]},"}]} for text in RECORD_TEXTS]


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("lead", ["", "\ufeff", " \n\t"])
@pytest.mark.parametrize(
    "form",
    [
        lambda records: json.dumps(records),
        lambda records: json.dumps(records, indent=2, ensure_ascii=False),
        lambda records: json.dumps(records, indent="\t").replace("\n", "\r\n"),
        lambda records: "\n".join(json.dumps(record, indent=4) for record in records),
        lambda records: "".join(json.dumps(record) + "\n" for record in records),
        lambda records: "[" + "\n,\n".join(json.dumps(record) for record in records) + "\n]\n",
    ],
    ids=["array", "indented", "tabs", "objects", "lines", "line-each"],
)
def test_arrays_and_records_over_several_lines_become_lines(form, lead: str, size: int) -> None:
    data = (lead + form(RECORDS)).encode()
    chunks = (data[start : start + size] for start in range(0, len(data), size))
    lines = b"".join(as_json_lines(chunks, Path("a.json"))).decode().removeprefix("\ufeff").split("\n")
    assert [json.loads(line) for line in lines if line.strip()] == RECORDS


@pytest.mark.parametrize("cut", [40, 60, -1])
def test_an_array_that_is_cut_off_gives_what_came_before_and_an_error(cut: int) -> None:
    data, given = json.dumps([{"text": "a" * 20}, {"text": "b" * 20}]).encode()[:cut], list[bytes]()
    with pytest.raises(DataError, match=r"a\.json: the JSON is truncated"):
        given.extend(as_json_lines(iter([data]), Path("a.json")))
    assert json.loads(b"".join(given).split(b"\n")[0]) == {"text": "a" * 20}


@pytest.mark.parametrize("data", [b"", b" \n", b'{"text": "a"}\n[1, 2]\n', b'["a"]\n{"text": "b"}\n', b'{"a": \n'])
def test_json_lines_pass_as_they_are(data: bytes) -> None:
    assert b"".join(as_json_lines(iter([data]), Path("a.jsonl"))) == data


def test_damage_within_a_record_ends_with_it() -> None:
    data = b'[{"text": "cut\n},\n {"text": "b"}]'
    lines = b"".join(as_json_lines(iter([data]), Path("a.json"))).split(b"\n")
    assert json.loads(lines[-2]) == {"text": "b"}
