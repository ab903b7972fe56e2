"""A tokenizer's directory, loaded and used: tokenizer.json and tokenizer_config.json."""

import json
from pathlib import Path
from typing import Any

from fuzz.format import Format
from fuzz.suite import check
from fuzz.trees import json_mutator
from glmforge.data.tokens.bpe import train_tokenizer
from glmforge.data.tokens.tokenizer import Tokenizer, token_byte_lengths

_TEXT = "The smith said: 'go to the forge, there are 12,345 things to do!'\n" * 3
_MESSAGES = [{"role": "user", "content": "the forge <|user|>"}, {"role": "assistant", "content": "go"}]


def write(directory: Path) -> None:
    train_tokenizer([_TEXT * 20], 310, directory, overwrite=True)


def read(directory: Path) -> None:
    tokenizer = Tokenizer.load(directory)
    ids = tokenizer.encode(_TEXT)
    tokenizer.decode([*ids, *tokenizer.stop_ids, 10**6])
    assert all(0 <= index < tokenizer.vocab_size for index in ids)
    tokenizer.encode_batch([_TEXT, "", "a" * 3000])
    tokenizer.apply_chat_template(_MESSAGES)
    token_byte_lengths(tokenizer)


def _with(**changes: Any) -> Any:
    """A bomb that changes parts of tokenizer.json, named by their paths (`model__vocab`)."""

    def plant(directory: Path) -> None:
        content = json.loads((directory / "tokenizer.json").read_text())
        for path, value in changes.items():
            *parents, name = path.split("__")
            section = content
            for parent in parents:
                section = section[parent]
            section[name] = value(section[name]) if callable(value) else value
        (directory / "tokenizer.json").write_text(json.dumps(content))

    return plant


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_BOMBS = {
    "regex_that_backtracks": _with(pre_tokenizer=_split("(a|a|a?)+$")),
    "regex_of_a_million": _with(pre_tokenizer=_split("a{1000}{1000}{1000}")),
    "normalizer_that_grows": _with(
        normalizer={
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "e"}, "content": "ee" * 1000}] * 4,
        }
    ),
    "sequence_in_sequence": _with(pre_tokenizer=lambda old: {"type": "Sequence", "pretokenizers": [old] * 3}),
    "huge_id": _with(model__vocab=lambda old: {**old, "x" * 9: 2**32 - 1}),
    "negative_id": _with(model__vocab=lambda old: {**old, "x" * 9: -1}),
    "id_twice": _with(model__vocab=lambda old: {**old, "x" * 9: 0}),
    "merge_of_unknown": _with(model__merges=lambda old: [*old, ["q" * 9, "z"]]),
    "merge_of_three": _with(model__merges=lambda old: [*old, "a b c"]),
    "empty_added_token": _with(added_tokens=lambda old: [*old, {**old[0], "id": 400, "content": ""}]),
    "added_token_of_blanks": _with(
        added_tokens=lambda old: [*old, {**old[0], "id": 400, "content": " ", "rstrip": True}]
    ),
    "special_token_in_the_vocabulary": _with(model__vocab=lambda old: {**old, "<|user|>": len(old)}),
    "unigram": _with(model={"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]], "byte_fallback": False}),
    "dropout": _with(model__dropout=0.5),
}

FORMAT = Format(
    name="tokenizers",
    write=write,
    read=read,
    mutators={"*.json": json_mutator()},
    bombs=_BOMBS,
    events=frozenset({"exec", "compile"}),  # the chat template
)


def test_mutations_and_bombs() -> None:
    check(__name__)
