"""Evaluation sets as they are published: the questions and answers that training text must not hold.

Files of JSON lines (plain, gzip, Zstandard), JSON (an array, or an object that holds one, as BIG-Bench's), CSV (with a
header, or in the form of MMLU's), Parquet, and zip archives and directories of these. Which fields are searched for is
recognised by name, or by the records' fields: see `AUTO_FIELDS`.
"""

import csv
import gzip
import io
import json
import string
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import zstandard
from pyarrow import parquet
from pydantic import Field

from glmforge.config.fields import YamlPath
from glmforge.config.model import Strict
from glmforge.errors import DataError

QUESTION_FIELDS = (
    "question", "problem", "prompt", "query", "instruction", "input", "text", "question_content", "ctx", "goal",
    "sentence", "premise", "stem",
)  # fmt: skip
ANSWER_FIELDS = ("solution", "answer")
PROGRAM_FIELDS = ("code", "canonical_solution", "program")
AUTO_FIELDS = (QUESTION_FIELDS, ANSWER_FIELDS, PROGRAM_FIELDS)
"""Without `fields`, the first name of each line that records have, in any case. A question with choices is tried
with them, too. Passages that questions are about (SQuAD's `context`) are texts of the web, and not searched for."""

CHOICE_FIELDS = ("choices", "options", "endings", "A+B+C+D", "sol1+sol2", "option1+option2")
ID_FIELDS = ("task_id", "unique_id", "id", "question_id", "idx")
HEADERLESS_CSV = ("question", "A", "B", "C", "D", "answer")
"""Columns of MMLU's files, which do not name them."""


KINDS = "a file .jsonl[.gz|.zst], .json, .csv, .parquet, or a .zip or directory of these"


class EvaluationSet(Strict):
    """One set to keep out of the corpus."""

    name: str = Field(min_length=1, description="its name in reports")
    path: YamlPath = Field(description="file (.jsonl[.gz|.zst], .json, .csv, .parquet, .zip of these) or directory")
    fields: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="fields to search for, each separately; 'question+choices' joins two, for items whose single "
        "fields are too short; empty: chosen from the records' fields",
    )


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an evaluation set.

    Attributes:
        id: the record's own, or file and line.
        passages: (field, text) of what is to be searched for.
        joined: (field, text) to search for when all `passages` are too short.
    """

    set_name: str
    id: str
    passages: tuple[tuple[str, str], ...]
    joined: tuple[tuple[str, str], ...] = ()


def read_items(evaluation_set: EvaluationSet) -> list[Item]:
    """All items of a set.

    Raises:
        DataError: the path is missing, damaged, of no known kind, has no item, or a record has none of the fields.
    """
    path = evaluation_set.path
    if not path.exists():
        raise DataError(f"{path}: evaluation set '{evaluation_set.name}' does not exist: check the path")
    items = []
    try:
        for where, record in _records_under(path):
            items.append(_item(evaluation_set, where, record))
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zstandard.ZstdError, pa.ArrowException) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not readable as an evaluation set ({error}); is the file complete?") from error
    if not items:
        raise DataError(f"{path}: evaluation set '{evaluation_set.name}' has no items; pass {KINDS} with items")
    return items


def _item(evaluation_set: EvaluationSet, where: str, record: Mapping[str, Any]) -> Item:
    names = {str(name).lower(): name for name in record} | {str(name): name for name in record}
    values = {name: record[own] for name, own in names.items()}
    fields = evaluation_set.fields or _auto_fields(values)
    have = [field for field in fields if all(part in values for part in field.split("+"))]
    if not have:
        wanted = ", ".join(fields or (name for names in AUTO_FIELDS for name in names))
        raise DataError(
            f"{evaluation_set.path}: {where} has no field {wanted} (it has: {', '.join(map(str, record))}): rename "
            f"one, or list its fields under 'fields' of evaluation set '{evaluation_set.name}' in a pipeline file"
        )
    name = next((str(values[field]) for field in ID_FIELDS if values.get(field) not in (None, "")), where)
    single = tuple((field, _as_text(values[field])) for field in have if "+" not in field)
    joined = tuple((field, text) for field in have if "+" in field for text in _joined(field.split("+"), values))
    return Item(evaluation_set.name, name, single or joined, joined if single else ())


def _joined(parts: Sequence[str], values: Mapping[str, Any]) -> Iterator[str]:
    """Fields as one text and, where those after the first are choices, once more with a letter before each."""
    yield "\n".join(_as_text(values[part]) for part in parts)
    choices = [choice for part in parts[1:] for choice in _choices(values[part])]
    if len(choices) > 1:
        lettered = (f"{letter}. {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False))
        yield "\n".join([_as_text(values[parts[0]]), *lettered])


def _choices(value: object) -> list[str]:
    """The choices of a field: a list's, or itself; ARC keeps them in an object beside their letters."""
    if isinstance(value, Mapping):
        value = value.get("text", list(value.values()))
    return [_as_text(one) for one in value] if isinstance(value, list | tuple) else [_as_text(value)]


def _auto_fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    found = [next((name for name in names if _as_text(values.get(name))), None) for names in AUTO_FIELDS]
    fields = [name for name in found if name is not None]
    choices = next((name for name in CHOICE_FIELDS if all(part in values for part in name.split("+"))), None)
    if found[0] and choices:
        fields.append(f"{found[0]}+{choices}")
    return tuple(fields)


def _as_text(value: object) -> str:
    """Text of a field: strings, and what lists and objects hold of them; numbers and null are no text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _as_text(list(value.values()))
    return "\n".join(filter(None, map(_as_text, value))) if isinstance(value, Sequence) else ""


def _records_under(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.is_file():
        yield from _records(path.name, path.read_bytes(), top=True)
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            yield from _records(file.relative_to(path).as_posix(), file.read_bytes())


def _records(name: str, data: bytes, top: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, record) of each record in a file of that name; other files than the known kinds hold none."""
    if name.endswith(".zip"):
        yield from _zip_records(data)
    elif name.endswith(".gz"):
        yield from _records(name.removesuffix(".gz"), gzip.decompress(data), top)
    elif name.endswith(".zst"):
        yield from _records(name.removesuffix(".zst"), zstandard.ZstdDecompressor().stream_reader(data).read(), top)
    elif name.endswith(".parquet"):
        yield from _numbered(name, parquet.read_table(pa.BufferReader(data)).to_pylist())
    elif name.endswith(".jsonl"):
        yield from _numbered(name, [json.loads(line) for line in data.split(b"\n") if line.strip()])
    elif name.endswith(".json"):
        yield from _json_records(name, json.loads(data))
    elif name.endswith(".csv"):
        yield from _numbered(name, _csv_records(data.decode("utf-8-sig")))
    elif top:
        raise DataError(f"{name}: an evaluation set is {KINDS}: convert it, or give another")


def _json_records(name: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Records of a JSON file: a list of them, an object of lists of them (BIG-Bench: "examples"), an object of them."""
    if not isinstance(value, Mapping):
        yield from _numbered(name, value if isinstance(value, list) else [value])
        return
    lists = {key: part for key, part in value.items() if part and isinstance(part, list) and _are_records(part)}
    if "rows" in lists and all(isinstance(row.get("row"), Mapping) for row in lists["rows"]):
        lists = {"rows": [row["row"] for row in lists["rows"]]}  # as the viewer of Hugging Face's data sets gives them
    if not any(_as_text(value.get(field)) for field in QUESTION_FIELDS):
        if lists:
            for key, part in lists.items():
                yield from _numbered(f"{name}:{key}", part)
            return
        if value and _are_records(list(value.values())):
            yield from ((f"{name}:{key}", record) for key, record in value.items())
            return
    yield name, value


def _are_records(values: Sequence[object]) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _zip_records(data: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in sorted(archive.namelist()):
            if not member.endswith("/"):
                yield from _records(member, archive.read(member))


def _csv_records(text: str) -> list[dict[str, str]]:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    known = {name for names in (*AUTO_FIELDS, CHOICE_FIELDS, ID_FIELDS) for name in names}
    if rows and not known & {cell.strip().lower() for cell in rows[0]} and len(rows[0]) == len(HEADERLESS_CSV):
        return [dict(zip(HEADERLESS_CSV, row, strict=False)) for row in rows if row]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:] if row]


def _numbered(name: str, records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, record in enumerate(records, start=1):
        if not isinstance(record, Mapping):
            raise DataError(f"{name}, record {number:,}: not an object but {type(record).__name__}: check the file")
        yield f"{name}:{number}", record
