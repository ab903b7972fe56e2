"""The tokenizer: bytes to ids and back, with or without control tokens.

A thin layer over `tokenizers`. What it adds is one distinction: a corpus must not be able to inject control
tokens (a scraped page that says `<|assistant|>` is text about a token, not a turn), while a rendered
conversation is made of them. `encode` therefore uses a second copy of the tokenizer that knows no special
tokens at all and reads them as plain text; `encode_with_special_tokens` uses the full one. The library's own
switch, `encode_special_tokens`, covers only tokens flagged as special, which `<think>` and its kind are not.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from glmforge.data.chat.template import CHAT_TEMPLATE, Message, render
from glmforge.data.tokens.special import END_OF_TEXT, SPECIAL_TOKENS, STOP_TOKENS
from glmforge.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


class Tokenizer:
    """A byte-level BPE tokenizer with GLM's special tokens. Make one with `Tokenizer.load(directory)`.

    Attributes:
        fingerprint: SHA-256 of tokenizer.json; token shards remember which tokenizer wrote them by it.
        chat_template: Jinja source that `apply_chat_template` renders with.
    """

    def __init__(self, tokenizer_json: str, chat_template: str = CHAT_TEMPLATE) -> None:
        plain_json = json.loads(tokenizer_json) | {"added_tokens": [], "post_processor": None}
        self._full = _parse(tokenizer_json)
        self._plain = _parse(json.dumps(plain_json))
        self.fingerprint = hashlib.sha256(tokenizer_json.encode()).hexdigest()
        self.chat_template = chat_template
        ids = {token: self._full.token_to_id(token) for token in SPECIAL_TOKENS}
        self._special_ids = {token: index for token, index in ids.items() if index is not None}
        if len(self._special_ids) < len(ids):
            missing = " ".join(token for token in ids if token not in self._special_ids)
            raise DataError(f"lacks GLM's special tokens {missing}")

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read a directory with tokenizer.json and, for its chat template, tokenizer_config.json.

        Raises:
            DataError: the directory is missing, its files cannot be read, or it is not a GLM tokenizer.
        """
        path = Path(directory) / TOKENIZER_FILE
        fix = "make one with 'glmforge data tokenizer', or give the directory of a GLM checkpoint"
        try:
            return cls(path.read_text(encoding="utf-8"), _read_chat_template(path.parent))
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file: {fix}") from error
        except ValueError as error:  # broken UTF-8, broken JSON, or what the constructor refuses
            raise DataError(f"{path}: not a GLM tokenizer: {error}: {fix}") from error

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included. A model's `vocab_size` may be padded beyond it."""
        return int(self._full.get_vocab_size(with_added_tokens=True))

    @property
    def end_of_text_id(self) -> int:
        return self.special_id(END_OF_TEXT)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant's turn."""
        return tuple(self.special_id(token) for token in STOP_TOKENS)

    def special_id(self, token: str) -> int:
        """The id of one of GLM's special tokens, e.g. `<|user|>`."""
        if token not in self._special_ids:
            raise DataError(f"'{token}' is not one of GLM's special tokens; see glmforge.data.tokens.special")
        return self._special_ids[token]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, in which special tokens are ordinary characters."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on all cores unless TOKENIZERS_PARALLELISM says otherwise."""
        return [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Ids of a rendered conversation, in which `<|user|>` and its kind become control tokens."""
        return list(self._full.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of `ids`. Bytes that are not UTF-8 (an answer cut inside a character) become U+FFFD."""
        return str(self._full.decode(ids, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        thinking: bool = True,
    ) -> list[int]:
        """Ids of a conversation, rendered with the tokenizer's chat template; see `chat.template.render`."""
        text = render(messages, tools, add_generation_prompt, thinking, template=self.chat_template)
        return self.encode_with_special_tokens(text)

    def id_to_token(self, index: int) -> str:
        """The token's own spelling: one character per byte for a learnt token, the text of a special one."""
        token = self._full.id_to_token(index)
        if token is None:
            raise DataError(f"token id {index} is not in the vocabulary of {self.vocab_size:,}")
        return str(token)


def token_byte_lengths(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """How many bytes of text each id stands for, int64 [vocab_size]; special tokens stand for none.

    Bits per byte, unlike loss per token, compares models with different tokenizers. A byte-level token is
    spelt with one character per byte, so its length needs no decoding.
    """
    special = set(SPECIAL_TOKENS)
    spellings = (tokenizer.id_to_token(index) for index in range(tokenizer.vocab_size))
    return np.array([0 if token in special else len(token) for token in spellings], dtype=np.int64)


def _parse(tokenizer_json: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # the library raises nothing narrower
        raise DataError(str(error)) from error


def _read_chat_template(directory: Path) -> str:
    """From tokenizer_config.json, or chat_template.jinja where transformers has written one."""
    jinja_file = directory / "chat_template.jinja"
    if jinja_file.is_file():
        return jinja_file.read_text(encoding="utf-8")
    config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    return str(config.get("chat_template", CHAT_TEMPLATE))
