"""JSON lines: the compiled pass against a complete parser, and lines of any length from chunks of any size."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glmforge.errors import DataError
from glmforge_corpus.extract import jsonl
from glmforge_corpus.extract.inputs import Input, SourceFile
from glmforge_corpus.extract.json_kernels import parse_lines
from glmforge_corpus.extract.json_stream import as_json_lines
from glmforge_corpus.extract.jsonl import LineBlock, line_blocks
from glmforge_corpus.extract.records import Context

TEXTS = [
    "plain",
    'tab\tquote"back\\slash/ \b\f\n\r',
    "été 中文 😀",
    "\0\x1f\x7f",
    "x" * 100,
    " \n",
    "",
    "\u2028 \ufeff",
]
NUMBERS = [
    "0",
    "-1",
    "12.50",
    "1e5",
    "-2E-07",
    "0.1e+3",
    "1" * 200,
    "1e400",
    "1e999",
    "1" * 400,
    "01",
    "-",
    "1.",
    "+1",
    ".5",
    "1e",
]
VALUES = [
    *NUMBERS,
    "true",
    "false",
    "null",
    "nul",
    "tru",
    "[]",
    "{}",
    "[1, 2]",
    "[1,]",
    "[,]",
    "[}",
    '{"a": [{"b": "c"}]}',
]
VALUES += [
    '{"a"}',
    '{"a": 1,}',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    '"\\ude00\\ud83d"',
    '"\\ud83d\\ud83d"',
    '"\\u00zz"',
    '"\\x"',
    '"a',
    "[" * 70 + "]" * 70,
]


def file(**options) -> SourceFile:
    source = Input(**{"source": "s", "path": Path("f.jsonl"), "id_field": "id"} | options)
    return SourceFile(Path("f.jsonl"), "s/f.jsonl", 1, "jsonl", source)


def read(road, data: bytes, source: SourceFile, max_document_bytes: int = 1 << 20):
    """(documents, what was put aside) by one of the roads."""
    aside: list[tuple[str, str, bytes, str]] = []
    context = Context(lambda *record: aside.append(record), lambda what: None, max_document_bytes)
    block = LineBlock(7, data, data.count(b"\n"))
    batches = [road(block, source, context)] if road is jsonl._by_line else list(road(block, source, context))
    rows = [row for batch in batches for row in batch.table.to_pylist()]
    return rows, aside


def random_line(rng: random.Random) -> bytes:
    """A record, mostly whole, in one of many ways to write it."""
    text, name = rng.choice(TEXTS) + rng.choice(TEXTS), rng.choice(["a", "é\n", "", 12, -3, 0, 10**17, 10**18, 10**30])
    fields = [("text", json.dumps(text, ensure_ascii=rng.random() < 0.5)), ("id", json.dumps(name))]
    fields += [(rng.choice(["x", "texts", "tex", "i\\u0064", "text", "id"]), rng.choice(VALUES))] * (rng.random() < 0.4)
    rng.shuffle(fields)
    gap = rng.choice(["", " ", "\t "])
    line = "{" + gap + f"{gap},{gap}".join(f'"{key}"{gap}:{gap}{value}' for key, value in fields) + gap + "}"
    data = (gap + line + rng.choice(["", " ", "\r"])).encode()
    chance = rng.random()
    if chance < 0.1:
        place = rng.randrange(len(data))
        data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    elif chance < 0.15:
        data = data[: rng.randrange(len(data))]
    elif chance < 0.2:
        data = rng.choice([b"", b" ", b"[1]", b"3", b"\v", b"\xef\xbb\xbf" + data])
    return data.replace(b"\n", b" ")


@pytest.mark.parametrize("id_field", ["id", None, "text"])
@pytest.mark.parametrize("lines_after", [1, 3, 64])
@pytest.mark.parametrize("seed", range(12))
def test_both_roads_come_to_the_same_documents(seed, id_field, lines_after, monkeypatch):
    monkeypatch.setattr(jsonl, "_LINES_AFTER", lines_after)
    rng = random.Random(seed)
    lines = [random_line(rng) for _ in range(200)]
    lines = [line for line in lines if line.isascii() or _is_utf8(line)] if seed % 4 else lines
    data = b"\n".join(lines) + rng.choice([b"", b"\n"])
    source = file(id_field=id_field)
    assert read(jsonl._batches, data, source) == read(jsonl._by_line, data, source)


def _is_utf8(line: bytes) -> bool:
    return line.decode(errors="replace").encode() == line


def test_the_compiled_pass_takes_what_is_ordinary():
    values = ["0", "-12.5e-3", "true", "null", '{"a": [1, {"b": []}], "c": ""}', '"\\ud83d\\ude00"', "[[], {}]"]
    lines = [
        f'{{"meta": {value}, "text": {json.dumps(text)}, "id": "{k}"}}'
        for value in values
        for k, text in enumerate(TEXTS[:5])
    ]
    data = np.frombuffer("\n".join(lines).encode(), np.uint8)
    texts, offsets = np.empty(len(data), np.uint8), np.empty(len(lines) + 1, np.int64)
    key = (np.frombuffer(b"text", np.uint8), np.frombuffer(b"", np.uint8))
    ids, id_offsets, numbers = np.empty(0, np.uint8), np.empty(len(lines) + 1, np.int32), np.empty(len(lines), np.int64)
    assert parse_lines(data, 0, *key, 1000, texts, offsets, ids, id_offsets, numbers) == (
        len(data),
        len(lines),
        len(lines),
    )
    found = [bytes(texts[offsets[k] : offsets[k + 1]]).decode() for k in range(len(lines))]
    assert found == TEXTS[:5] * len(values)


def test_a_text_that_is_too_long_is_put_aside_whatever_the_road():
    lines = [
        json.dumps({"id": str(n), "text": "é" * n}, ensure_ascii=n % 2 == 0) for n in (10, 499, 500, 501, 502, 1200)
    ]
    data = "\n".join(lines).encode()
    for road in (jsonl._batches, jsonl._by_line):
        rows, aside = read(road, data, file(), max_document_bytes=1000)
        assert [row["id"] for row in rows] == ["10", "499", "500"]
        assert [(reason, where) for reason, where, _, _ in aside] == [
            ("too long", f"s/f.jsonl:{n}") for n in (10, 11, 12)
        ]


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
    with pytest.raises(DataError, match=r"a\.json: the JSON ends before its brackets are closed"):
        given.extend(as_json_lines(iter([data]), Path("a.json")))
    assert json.loads(b"".join(given).split(b"\n")[0]) == {"text": "a" * 20}


@pytest.mark.parametrize("data", [b"", b" \n", b'{"text": "a"}\n[1, 2]\n', b'["a"]\n{"text": "b"}\n', b'{"a": \n'])
def test_json_lines_pass_as_they_are(data: bytes) -> None:
    assert b"".join(as_json_lines(iter([data]), Path("a.jsonl"))) == data


def test_damage_within_a_record_ends_with_it() -> None:
    data = b'[{"text": "cut\n},\n {"text": "b"}]'
    lines = b"".join(as_json_lines(iter([data]), Path("a.json"))).split(b"\n")
    assert json.loads(lines[-2]) == {"text": "b"}
