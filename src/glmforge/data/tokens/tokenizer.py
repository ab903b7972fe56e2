"""The tokenizer: bytes to ids and back, with or without control tokens.

A thin layer over `tokenizers`. What it adds is one distinction: a corpus must not be able to inject control
tokens (a scraped page that says `<|assistant|>` is text about a token, not a turn), while a rendered
conversation is made of them. `encode` therefore uses a second copy of the tokenizer that knows no special
tokens at all and reads them as plain text; `encode_with_special_tokens` uses the full one. The library's own
switch, `encode_special_tokens`, covers only tokens flagged as special, which `<think>` and its kind are not.

Much text is encoded by our own compiled encoder, which is some thirty times faster, provided that it passes a
comparison with the library for this very tokenizer; see `fast_encoder`. Either way the ids are the same.
"""

import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from glmforge.data.chat_template.template import CHAT_TEMPLATE, Message, render_parts
from glmforge.data.files import write_whole
from glmforge.data.tokens.special import END_OF_TEXT, SPECIAL_TOKENS, STOP_TOKENS
from glmforge.data.tokens.spelling import unspell
from glmforge.data.tokens.tokenizer_file import (
    PADDED_SIZE_KEY,
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    parse_tokenizer_json,
    read_chat_template,
    read_padded_size,
    read_tokenizer_json,
)
from glmforge.errors import DataError
from glmforge.files import kind_of, shown, why_no_text

if TYPE_CHECKING:
    from glmforge.data.tokens.fast_encoder import FastEncoder

_log = logging.getLogger(__name__)

FAST_FROM_BYTES = 2 << 20
"""From how much text on the compiled encoder is worth its loading, about a second."""


class Tokenizer:
    """A byte-level BPE tokenizer with GLM's special tokens. Make one with `Tokenizer.load(directory)`.

    Attributes:
        fingerprint: SHA-256 of tokenizer.json; token shards remember which tokenizer wrote them by it.
        chat_template: Jinja source that `apply_chat_template` renders with.
        padded_vocab_size: rows of a model's embedding, as noted beside the tokenizer; `vocab_size` if nothing is.
    """

    def __init__(
        self, tokenizer_json: str, chat_template: str = CHAT_TEMPLATE, padded_vocab_size: int | None = None
    ) -> None:
        content = parse_tokenizer_json(tokenizer_json)
        self._full = _parse(json.dumps(content))
        self._plain_json = json.dumps(content | {"added_tokens": []})
        self._plain = _parse(self._plain_json)
        self._num_bytes_encoded = 0
        self.fingerprint = hashlib.sha256(tokenizer_json.encode()).hexdigest()
        self.chat_template = chat_template
        self.padded_vocab_size = self.vocab_size if padded_vocab_size is None else padded_vocab_size
        if self.padded_vocab_size < self.vocab_size:
            raise DataError(f"{PADDED_SIZE_KEY} {self.padded_vocab_size:,} is less than the {self.vocab_size:,} tokens")
        self._control_ids = {token.content: index for index, token in self._full.get_added_tokens_decoder().items()}
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
        fix = "create one with 'glmforge data tokenizer', or pass a GLM checkpoint directory"
        if kind_of(path, error=DataError) is None:
            raise DataError(f"{shown(path)}: no such file: {fix}")
        text = read_tokenizer_json(path)
        try:
            template, size = read_chat_template(path.parent), read_padded_size(path.parent)
        except FileNotFoundError as error:
            raise DataError(f"{error.filename}: no such file: {fix}") from error
        try:
            return cls(text, template, size)
        except DataError as error:
            raise DataError(f"{path}: not a GLM tokenizer: {shown(error)}: {fix}") from error

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
        """Ids of `text`, in which special tokens are ordinary characters. Raises `DataError` for what is no text."""
        return _encode(self._plain, text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once."""
        if not self._has_much_to_do(sum(map(len, texts))) or self.fast_encoder is None:
            return self.encode_batch_with_library(texts)
        return self.fast_encoder.encode_batch(texts)

    def encode_utf8(
        self, text: NDArray[np.uint8], offsets: NDArray[np.int64], *, end_of_text: bool = False
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """`encode` for many texts in the form in which corpora hold them.

        Args:
            text: UTF-8 of all texts.
            offsets: `[n + 1]`, text i is `text[offsets[i]:offsets[i + 1]]`.
            end_of_text: put `<|endoftext|>` behind each text.

        Returns:
            Ids of all texts end to end, and the number of each text's ids, `[n]`.
        """
        end = self.end_of_text_id if end_of_text else -1
        if self._has_much_to_do(int(offsets[-1] - offsets[0])) and self.fast_encoder is not None:
            return self.fast_encoder.encode(text, offsets, end)
        pairs = pairwise(offsets.tolist())
        ids = self.encode_batch_with_library([text[first:last].tobytes().decode() for first, last in pairs])
        if end_of_text:
            ids = [[*part, end] for part in ids]
        lengths = np.array([len(part) for part in ids], np.int64)
        return np.fromiter((index for part in ids for index in part), np.int32, int(lengths.sum())), lengths

    def encode_batch_with_library(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_batch` by `tokenizers`, which is the definition; on all cores but for TOKENIZERS_PARALLELISM."""
        return [encoding.ids for encoding in self._plain.encode_batch_fast(texts, add_special_tokens=False)]

    @functools.cached_property
    def fast_encoder(self) -> "FastEncoder | None":
        """The compiled encoder; None, with the reason in the log, where it is missing or of another opinion."""
        try:
            from glmforge.data.tokens.fast_encoder import FastEncoder, UnsupportedTokenizer
        except ModuleNotFoundError as error:
            _log.info("encoding with 'tokenizers'; the faster encoder needs the package %s", error.name)
            return None
        try:
            return FastEncoder.of(self._plain_json, self.encode_batch_with_library)
        except UnsupportedTokenizer as error:
            _log.warning("encoding with 'tokenizers'; the faster encoder does not support this tokenizer: %s", error)
            return None

    def _has_much_to_do(self, num_bytes: int) -> bool:
        self._num_bytes_encoded += num_bytes
        return self._num_bytes_encoded >= FAST_FROM_BYTES

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Ids of a trusted text: `<|user|>` and its kind become control tokens wherever it spells them."""
        return _encode(self._full, text)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of `ids`. Bytes that are not UTF-8 (an answer cut inside a character) become U+FFFD.

        Ids beyond the vocabulary, which a model with a padded embedding may utter, say nothing.
        """
        return str(self._full.decode(ids, skip_special_tokens=skip_special_tokens))

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        thinking: bool = True,
        *,
        clear_thinking: bool = True,
    ) -> list[int]:
        """Ids of a conversation, rendered with the tokenizer's chat template; see `chat_template.template.render`.

        Control tokens are only where the template writes them: what messages and tools spell is encoded as `encode`
        does it, but for a `/nothink` at the end of a user's message.
        """
        parts = render_parts(
            messages,
            tools,
            add_generation_prompt,
            thinking,
            template=self.chat_template,
            clear_thinking=clear_thinking,
            control_tokens=tuple(self._control_ids),
        )
        ids: list[int] = []
        for number, part in enumerate(parts):
            ids += [self._control_ids[part]] if number % 2 else self.encode(part)
        return ids

    def id_to_token(self, index: int) -> str:
        """The token's own spelling: one character per byte for a trained token, the text of a special one."""
        token = self._full.id_to_token(index) if index >= 0 else None
        if token is None:
            raise DataError(f"token id {index} is not in the vocabulary of {self.vocab_size:,}")
        return str(token)

    def token_bytes(self, index: int) -> bytes:
        """What the token adds to a text, nothing for an id beyond the vocabulary.

        The bytes of all tokens, read as UTF-8, are what `decode` gives.
        """
        token = self._full.id_to_token(index)
        if token is None:
            return b""
        try:
            return unspell(token)
        except ValueError:  # an added token, which is spelt as it is
            return str(token).encode()

    def to_json(self) -> str:
        """Content of a tokenizer.json."""
        return str(self._full.to_str())


def token_byte_lengths(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """How many bytes of text each id stands for, int64 [vocab_size]; special tokens stand for none.

    Bits per byte, unlike loss per token, compares models with different tokenizers. A byte-level token is
    spelt with one character per byte, so its length needs no decoding.
    """
    special = set(SPECIAL_TOKENS)
    spellings = (tokenizer.id_to_token(index) for index in range(tokenizer.vocab_size))
    return np.array([0 if token in special else len(token) for token in spellings], dtype=np.int64)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of the tokenizer `source` to the directory `target`, each of them whole or not at all."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            write_whole(target / name, (source / name).read_bytes())


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    except TypeError:
        if isinstance(text, str) and (reason := why_no_text(text)) is not None:  # the library says nothing of it
            raise DataError(reason) from None
        raise


def _parse(tokenizer_json: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(tokenizer_json)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and its panics are no `Exception`
        raise DataError(str(error)) from error
