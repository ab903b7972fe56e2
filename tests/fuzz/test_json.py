"""JSON as such, through the reader that all small JSON files go through."""

import json
from pathlib import Path

from fuzz.format import Format
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.errors import ConfigError
from glmforge.files import MAX_BYTES, read_json

_ORIGINAL = {
    "text": "a string, [with] {brackets}",
    "numbers": [0, -1, 1.5, 1e-300, 2**63],
    "nested": {"a": [{"b": [{}, [], None, True]}]},
    "escapes": '\u2028 \U0001f600 \\ "',
}


def write(directory: Path) -> None:
    (directory / "file.json").write_text(json.dumps(_ORIGINAL))


def read(directory: Path) -> object:
    return read_json(directory / "file.json", dict, error=ConfigError)


_BOMBS = {
    "deep": "[" * 500_000,
    "deep_closed": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "digits": '{"a": ' + "9" * 1_000_000 + "}",
    "digits_of_a_float": '{"a": ' + "9" * 1_000_000 + ".0}",
    "many_lists": '{"a": [' + "[]," * 300_000 + "[]]}",
    "many_keys": "{" + ",".join(f'"{n}":{n}' for n in range(70_000)) + "}",
    "one_string": '{"a": "' + "x" * (MAX_BYTES - 9) + '"}',
    "too_large": '{"a": "' + "x" * MAX_BYTES + '"}',
    "escapes": '{"a": "' + "\\u0000" * 170_000 + '"}',
    "byte_order_mark": "\ufeff{}",
    "nothing": "",
}

FORMAT = Format(
    name="json",
    write=write,
    read=read,
    mutators={"*.json": json_mutator()},
    bombs={
        name: lambda directory, text=text: (directory / "file.json").write_text(text) for name, text in _BOMBS.items()
    },
)


def test_mutations_and_bombs() -> None:
    check(__name__)
