"""Rows of token ids that a quantiser measures activations on."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.errors import DataError
from glmforge.files import read_text

_MIN_TOKENS = 8
_MAX_BYTES = 1 << 28


def calibration_rows(file: Path, tokenizer: Tokenizer, *, num_rows: int, num_tokens: int) -> list[list[int]]:
    """At most `num_rows` rows of at most `num_tokens` ids.

    Args:
        file: JSON lines with `messages` (rendered with the chat template) or `text`; any other file is text, cut into
            rows.

    Raises `DataError` if the file cannot be read, a line is neither, or nothing is left.
    """
    text = read_text(file, error=DataError, max_bytes=_MAX_BYTES)
    if file.suffix == ".jsonl":
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        made = (_ids(line, tokenizer, f"{file}:{number}")[:num_tokens] for number, line in lines)
    else:
        ids = tokenizer.encode(text)
        made = (ids[first : first + num_tokens] for first in range(0, len(ids), num_tokens))
    rows = list(islice((row for row in made if len(row) >= _MIN_TOKENS), num_rows))
    if not rows:
        raise DataError(f"{file}: has no text of {_MIN_TOKENS} tokens to calibrate on")
    return rows


def _ids(line: str, tokenizer: Tokenizer, place: str) -> list[int]:
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("messages"), list):
        return tokenizer.apply_chat_template(content["messages"], content.get("tools"))
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return tokenizer.encode(content["text"])
    raise DataError(f"{place}: has neither 'messages' (a list) nor 'text' (a string)")
