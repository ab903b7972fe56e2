"""Parquet files in all the ways in which writers store text, and files whose names are no text."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge.data.documents.batch import read_batches
from glmforge.data.documents.read import read_documents
from glmforge.errors import ConfigError
from glmforge_corpus.pipeline.pipeline import pipeline_of
from glmforge_corpus.pipeline.run import run_pipeline

TEXTS = ["one two three", "", None, "中文文本", " \n", "last"]
BYTES = [None if text is None else text.encode() for text in TEXTS]
KINDS = {
    "string": pa.array(TEXTS),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "binary": pa.array(BYTES, pa.binary()),
    "large_binary": pa.array(BYTES, pa.large_binary()),
    "binary_view": pa.array(BYTES, pa.binary_view()),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "dictionary of large": pa.array(TEXTS, pa.large_string()).dictionary_encode(),
    "dictionary of bytes": pa.array(BYTES, pa.binary()).dictionary_encode(),
}


def run(directory: Path, path: Path, **options: Any) -> tuple[dict[str, str], list[dict[str, str]]]:
    """(texts by id, what was put aside) of one input."""
    stages = [{"extract": {"inputs": [{"source": "s", "path": str(path), **options}]}}]
    run_pipeline(pipeline_of({"output": str(directory), "stages": stages}, "test", {}))
    documents = [
        pair
        for shard in sorted((directory / "documents").iterdir())
        for batch in read_batches(shard)
        for pair in zip(batch.ids, batch.texts, strict=True)
    ]
    return dict(documents), [json.loads(line) for line in (directory / "quarantine.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_text_however_it_is_stored(tmp_path: Path, kind: str) -> None:
    labels = pa.array(list("abcdef")).dictionary_encode()
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"body": KINDS[kind], "label": labels}), path, row_group_size=4)
    texts, aside = run(tmp_path / "out", path, text_field="body", id_field="label", metadata=["label"])
    assert texts == {"a": "one two three", "d": "中文文本", "f": "last"}
    assert [(line["where"], line["reason"]) for line in aside] == [
        ("s/t.parquet:2", "empty text"),
        ("s/t.parquet:3", "not text"),
        ("s/t.parquet:5", "empty text"),
    ]


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["", "", ""]), "empty text"),
        (pa.array([" ", "\n", "\t"]), "empty text"),
        (pa.nulls(3, pa.string()), "not text"),
        (pa.nulls(3, pa.string()).dictionary_encode(), "not text"),
        (pa.nulls(3), "not text"),  # what pandas writes of a column of None
    ],
    ids=["empty", "blank", "null", "null in a dictionary", "without a type"],
)
def test_row_groups_without_a_text_are_put_aside(tmp_path: Path, column: pa.Array, reason: str) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"text": column}), path)
    parquet.write_table(pa.table({"text": pa.array(["text"])}), tmp_path / "u.parquet")
    texts, aside = run(tmp_path / "out", tmp_path)
    assert texts == {"s/u.parquet:1": "text"}
    assert [(line["where"], line["reason"]) for line in aside] == [(f"s/t.parquet:{k}", reason) for k in (1, 2, 3)]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([{"en": "one"}]), "store its text field as a separate column"),
        (pa.array([["one", "two"]]), "join each list into one text"),
        (pa.array([1]), "is int64, not text: select a text column"),
    ],
    ids=["struct", "list", "number"],
)
def test_columns_that_are_no_text_are_named_with_the_way_out(tmp_path: Path, column: pa.Array, says: str) -> None:
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({"text": column}), tmp_path / "in" / "t.parquet")
    parquet.write_table(pa.table({"text": ["kept"]}), tmp_path / "in" / "u.parquet")
    texts, (line,) = run(tmp_path / "out", tmp_path / "in")
    assert list(texts.values()) == ["kept"]
    assert line["reason"] == "unsuitable file"
    assert says in line["detail"]


@pytest.fixture
def ill_named(tmp_path: Path) -> Path:
    """Files of each format, whose names are Latin-1, in a directory whose name is, too; one is damaged."""
    directory = os.fsencode(tmp_path) + b"/caf\xe9/t\xfcr"
    Path(os.fsdecode(directory)).mkdir(parents=True)
    line = json.dumps({"text": "a line of JSON"}).encode()
    page = b"<html><body><p>A paragraph of a page that has enough words to be its main text.</p></body></html>"
    table = pa.BufferOutputStream()
    parquet.write_table(pa.table({"text": ["a row"]}), table)
    files = {b"a\xe9.txt": b"plain", b"b\xe9.jsonl": line, b"c\xe9.html": page, b"d\xe9.parquet": table.getvalue()}
    for name, data in (files | {b"e\xe9.parquet": b"damaged", b"f\xe9.jsonl": b"{"}).items():
        with open(directory + b"/" + name, "wb") as file:  # noqa: PTH123 - a name of bytes
            file.write(data)
    return Path(os.fsdecode(tmp_path))


def test_names_that_are_not_utf8_are_read_and_told(tmp_path: Path, ill_named: Path) -> None:
    result = CliRunner().invoke(
        app, ["data", "extract", str(ill_named), "--out", str(tmp_path / "out"), "--workers", "2"]
    )
    assert result.exit_code == 0, result.output
    ids = [name for batch in read_batches(tmp_path / "out" / "documents" / "00000.parquet") for name in batch.ids]
    below = f"{ill_named.name}/caf\\xe9/t\\xfcr/"
    assert ids == [f"{below}{name}" for name in ("a\\xe9.txt", "b\\xe9.jsonl:1", "c\\xe9.html", "d\\xe9.parquet:1")]
    lines = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert [line["where"] for line in lines] == [f"{below}e\\xe9.parquet", f"{below}f\\xe9.jsonl:1"]
    found = read_documents(ill_named / os.fsdecode(b"caf\xe9"), on_error="skip")
    assert [document.id for document in found][:2] == ["t\\xfcr/a\\xe9.txt", "t\\xfcr/b\\xe9.jsonl:1"]


def test_a_repository_has_names_that_are_not_utf8(tmp_path: Path) -> None:
    directory = os.fsencode(tmp_path) + b"/repos/pr\xf6j"
    Path(os.fsdecode(directory)).mkdir(parents=True)
    with open(directory + b"/m\xf6d.py", "wb") as file:  # noqa: PTH123 - a name of bytes
        file.write(b"import os\n\n\ndef path() -> str:\n    return os.getcwd()\n")
    texts, aside = run(tmp_path / "out", tmp_path / "repos", format="repositories", licences=[])
    assert (list(texts), aside) == (["s/pr\\xf6j/m\\xf6d.py"], [])


def test_a_name_that_no_pipeline_file_can_hold_is_refused(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    with pytest.raises(ConfigError, match=r"caf\\xe9.txt: the name is not UTF-8"):
        run(tmp_path / "out", tmp_path / name)
    assert not (tmp_path / "out").exists()
