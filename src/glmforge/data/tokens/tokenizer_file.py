"""The files of a tokenizer's directory, checked before `tokenizers` gets them.

The library builds whatever a `tokenizer.json` describes: any regular expression as the split rule (one that backtracks
for hours on a line of text), any chain of normalizers, ids up to four billion. A GLM tokenizer is a byte-level BPE with
one split rule; what differs in more than its vocabulary is another kind of tokenizer, and refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glmforge.data.chat_template.template import CHAT_TEMPLATE
from glmforge.data.tokens.characters import SPLIT_PATTERN
from glmforge.errors import DataError
from glmforge.files import kind_of, parse_json, read_json, read_text, shown

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_FILES = (TOKENIZER_FILE, CONFIG_FILE, CHAT_TEMPLATE_FILE)
"""What a directory with a tokenizer may hold, ours or one that transformers has written."""

PADDED_SIZE_KEY = "padded_vocab_size"
"""In tokenizer_config.json: rows of the embedding that a model with this tokenizer is to have."""

MAX_TOKENS = 1 << 22
_MAX_BYTES = 128 << 20
_MAX_VALUES = 6 * MAX_TOKENS
_MAX_TOKEN_CHARACTERS = 4096
_MAX_ADDED_TOKENS = 10_000

_MODEL: dict[str, tuple[object, ...]] = {
    "type": ("BPE",),
    "dropout": (None,),
    "unk_token": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "fuse_unk": (None, False),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False, True),
}
_NORMALIZERS = (None, "NFC", "NFD", "NFKC", "NFKD")
_FLAGS = {"add_prefix_space", "trim_offsets", "use_regex", "invert", "single_word", "lstrip", "rstrip", "normalized"}


def read_tokenizer_json(path: Path) -> str:
    """The text of a tokenizer.json. Raises `DataError`."""
    return read_text(path, error=DataError, max_bytes=_MAX_BYTES)


def parse_tokenizer_json(text: str) -> dict[str, Any]:
    """The content of a tokenizer.json that describes a byte-level BPE with GLM's split rule. Raises `DataError`.

    Its post-processor, which would add tokens to a text, is omitted: the chat template does that.
    """
    content = parse_json(text, dict, source=TOKENIZER_FILE, error=DataError, max_values=_MAX_VALUES)
    model = _section(content, "model")
    for name, allowed in _MODEL.items():
        value = model.get(name)
        if not any(value is known or (type(value) is type(known) and value == known) for known in allowed):
            raise DataError(f"model.{name} is {_shown(value)}, GLM's is {allowed[0]!r}")
    _check_vocabulary(model.get("vocab"))
    _check_merges(model.get("merges"))
    _check_added_tokens(content.get("added_tokens"))
    normalizer = content.get("normalizer")
    if normalizer is not None and (not isinstance(normalizer, dict) or normalizer.get("type") not in _NORMALIZERS):
        raise DataError(f"normalizer is {_shown(normalizer)}, GLM's is null")
    _check_split_rule(content.get("pre_tokenizer"))
    if content.get("decoder") is not None:
        _check_byte_level(_section(content, "decoder"), "decoder")
    for name in ("truncation", "padding"):
        if content.get(name) is not None:
            raise DataError(f"{name} is {_shown(content[name])}, GLM's is null")
    return content | {"post_processor": None}


def read_chat_template(directory: Path) -> str:
    """From chat_template.jinja where transformers has written one, or tokenizer_config.json. Raises `DataError`."""
    jinja_file = directory / CHAT_TEMPLATE_FILE
    if kind_of(jinja_file, error=DataError) is not None:
        return read_text(jinja_file, error=DataError)
    template = _read_config(directory).get("chat_template", CHAT_TEMPLATE)
    if isinstance(template, list):  # several, by name
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    if not isinstance(template, str):
        raise DataError(f"{directory / CONFIG_FILE}: chat_template is neither a template nor a list with a default one")
    return template


def read_padded_size(directory: Path) -> int | None:
    """Rows of the embedding that a model with this tokenizer is to have, if noted. Raises `DataError`."""
    if kind_of(directory / CONFIG_FILE, error=DataError) is None:
        return None
    size = _read_config(directory).get(PADDED_SIZE_KEY)
    if size is not None and (type(size) is not int or not 0 <= size <= 2 * MAX_TOKENS):
        raise DataError(f"{directory / CONFIG_FILE}: {PADDED_SIZE_KEY} {_shown(size)} is not a row count")
    return size


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_FILE
    if kind_of(path, error=DataError) is None:
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return read_json(path, dict, error=DataError)


def _check_vocabulary(vocabulary: object) -> None:
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise DataError("model.vocab is not a table of tokens")
    if len(vocabulary) > MAX_TOKENS:
        raise DataError(f"model.vocab has {len(vocabulary):,} tokens, at most {MAX_TOKENS:,} are supported")
    ids = vocabulary.values()
    if any(type(index) is not int for index in ids) or not 0 <= min(ids) <= max(ids) < len(ids) == len(set(ids)):
        raise DataError("the ids in model.vocab are not 0, 1, 2 ... each once")
    if longest := next((token for token in vocabulary if len(token) > _MAX_TOKEN_CHARACTERS), None):
        raise DataError(f"model.vocab has a token of {len(longest):,} characters")


def _check_merges(merges: object) -> None:
    if not isinstance(merges, list) or len(merges) > MAX_TOKENS:
        raise DataError("model.merges is not a list of pairs, or is too long")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise DataError(f"model.merges has {_shown(merge)}, which is not a pair of tokens")


def _check_added_tokens(tokens: object) -> None:
    if not isinstance(tokens, list) or len(tokens) > _MAX_ADDED_TOKENS:
        raise DataError("added_tokens is not a list of tokens, or is too long")
    for token in tokens:
        text = token.get("content") if isinstance(token, dict) else None
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_TOKEN_CHARACTERS:
            raise DataError(f"added_tokens has {_shown(token)}, which is not a token")
        index = token.get("id")
        if type(index) is not int or not 0 <= index < MAX_TOKENS + _MAX_ADDED_TOKENS:
            raise DataError(f"added_tokens: the id of {_shown(text)} is {_shown(index)}")


def _check_split_rule(rule: object) -> None:
    if not isinstance(rule, dict):
        raise DataError("pre_tokenizer is null, GLM's is a split rule and ByteLevel")
    parts = rule.get("pretokenizers") if rule.get("type") == "Sequence" else [rule]
    if not isinstance(parts, list) or len(parts) > 2:
        raise DataError("pre_tokenizer is not GLM's")
    for part in parts:
        if not isinstance(part, dict):
            raise DataError("pre_tokenizer is not GLM's")
        if part.get("type") != "Split":
            _check_byte_level(part, "pre_tokenizer")
        elif part.get("pattern") != {"Regex": SPLIT_PATTERN} or part.get("behavior") != "Isolated":
            raise DataError(f"pre_tokenizer splits by {_shown(part.get('pattern'))}, which is not GLM's rule")


def _check_byte_level(part: Mapping[str, Any], name: str) -> None:
    if part.get("type") != "ByteLevel":
        raise DataError(f"{name} is {_shown(part.get('type'))}, GLM's is ByteLevel")
    if wrong := [key for key, value in part.items() if key in _FLAGS and type(value) is not bool]:
        raise DataError(f"{name}: {wrong[0]} is {_shown(part[wrong[0]])}")


def _section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    if not isinstance(section, dict):
        raise DataError(f"{name} is missing, or not an object")
    return section


def _shown(value: object) -> str:
    return shown(repr(value)[:100])
