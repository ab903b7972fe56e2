"""The fast encoder of a tokenizer, if it has one and gives the same ids.

`tokenizers` is the definition of what a text's ids are; it encodes two megabytes per CPU second. The compiled encoder
(`piece_encoder`) is some thirty times faster and knows one kind of tokenizer: byte-level BPE with GLM's split rule
and nothing else. `FastEncoder.of` takes a tokenizer apart, refuses any setting that it does not know, and compares
the two encoders on `adversarial_texts`, which has every range of characters' edges, all bytes, long runs and mixed
white space. A tokenizer that does not pass is encoded by the library, as before.
"""

import itertools
import json
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import readonly
from glmforge.data.tokens.characters import SPLIT_PATTERN, character_classes
from glmforge.data.tokens.encoder_tables import (
    MAX_VOCABULARY,
    NO_RANK,
    EncoderTables,
    fill_pair_ranks,
    fill_spelling_table,
)
from glmforge.data.tokens.first_characters import find_first_characters
from glmforge.data.tokens.piece_encoder import encode_texts, new_cache
from glmforge.data.tokens.piece_merges import LONG_PIECE
from glmforge.data.tokens.spelling import unspell

_CHUNK_BYTES = 4 << 20
_FIRST_SCRATCH = 1 << 16


class UnsupportedTokenizer(Exception):
    """The tokenizer is of another kind; the message says in what."""


class FastEncoder:
    """Encodes UTF-8 with a tokenizer's merges. Special tokens are plain text to it. Make one with `of`."""

    def __init__(self, tables: EncoderTables) -> None:
        self._tables = tables
        self._lock = threading.Lock()  # the loop runs without the interpreter's, and changes the cache
        self._cache = new_cache()
        self._scratch = np.empty(_FIRST_SCRATCH, np.int64)  # longer after a long piece
        self._short = np.empty((3, LONG_PIECE), np.int32)

    def __reduce__(self) -> tuple[type[Self], tuple[EncoderTables]]:
        """Another process begins with an empty cache."""
        return type(self), (self._tables,)

    @classmethod
    def of(cls, tokenizer_json: str, encode_batch: Callable[[Sequence[str]], list[list[int]]]) -> Self:
        """The encoder of a tokenizer.json.

        Args:
            tokenizer_json: the file's contents.
            encode_batch: what the ids of texts must be.

        Raises:
            UnsupportedTokenizer: the file has settings that this encoder does not know, or ids differ.
        """
        encoder = cls(_tables(json.loads(tokenizer_json)))
        texts = adversarial_texts()
        for text, ours, expected in zip(texts, encoder.encode_batch(texts), encode_batch(texts), strict=True):
            if ours != expected:
                raise UnsupportedTokenizer(f"its IDs differ from those of 'tokenizers' in {text[:40]!r}")
        return encoder

    def encode(
        self, text: NDArray[np.uint8], offsets: NDArray[np.int64], end_id: int = -1
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(ids of all texts end to end, number of each text's ids); text i is `text[offsets[i]:offsets[i + 1]]`.

        With an `end_id`, it stands behind the ids of each text, and is counted.
        """
        text, offsets = readonly(text), readonly(np.ascontiguousarray(offsets, np.int64))
        lengths = np.empty(len(offsets) - 1, np.int64)
        parts, first = [np.empty(0, np.int32)], 0
        while first < len(lengths):
            last = max(int(np.searchsorted(offsets, offsets[first] + _CHUNK_BYTES, "right")) - 1, first + 1)
            part = offsets[first : last + 1]
            out = np.empty(int(part[-1] - part[0]) + len(part) - 1, np.int32)
            with self._lock:
                size = self._encode(text, part, end_id, out, lengths[first:last])
            parts.append(out[:size].copy())
            first = last
        return np.concatenate(parts), lengths

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of Python strings."""
        encoded = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        ids, lengths = self.encode(np.frombuffer(b"".join(encoded), np.uint8), offsets)
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if len(texts) else []

    def _encode(
        self,
        text: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        end_id: int,
        out: NDArray[np.int32],
        lengths: NDArray[np.int64],
    ) -> int:
        tables, cache, short = self._tables, self._cache, self._short
        done = size = 0
        while True:
            done, size, room = encode_texts(
                text, offsets, done, size, tables, cache, self._scratch, short, end_id, out, lengths
            )
            if done == len(lengths):
                return int(size)
            self._scratch = np.empty(room, np.int64)


_PRE_TOKENIZER = [
    {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
]
_MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
}
_WITHOUT_EFFECT = {"trim_offsets", "vocab", "merges", "ignore_merges"}


def _tables(content: dict[str, Any]) -> EncoderTables:
    model = content["model"]
    _check_settings(content, model)
    vocabulary: dict[str, int] = model["vocab"]
    size = max(vocabulary.values(), default=0) + 1
    if size > MAX_VOCABULARY:
        raise UnsupportedTokenizer(f"its ids go up to {size - 1:,}, beyond {MAX_VOCABULARY - 1:,}")
    try:
        spellings = {unspell(token): index for token, index in vocabulary.items()}
        byte_ids = np.array([spellings[bytes([byte])] for byte in range(256)], np.int32)
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        pairs = np.array([(vocabulary[a], vocabulary[b]) for a, b in merges], np.int64).reshape(-1, 2)
        merged_ids = np.array([vocabulary[a + b] for a, b in merges], np.int32)
    except (KeyError, ValueError) as error:
        raise UnsupportedTokenizer(f"its vocabulary lacks a byte, or a token of a merge ({error})") from error
    if len(pairs) > MAX_VOCABULARY:
        raise UnsupportedTokenizer(f"it has {len(pairs):,} merges, more than {MAX_VOCABULARY:,}")
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise UnsupportedTokenizer("it has a duplicate merge")
    data, offsets, table = _spelling_tables(spellings, size, look_up=bool(model.get("ignore_merges")))
    pair_ranks = np.empty(1 << max(2 * len(pairs), 1).bit_length(), np.uint64)
    fill_pair_ranks(pair_ranks, pairs)
    character_ids = np.full(1 << 16, -1, np.int32)
    scratch = np.empty((2, size), np.int64)
    find_first_characters(pairs, merged_ids, data, offsets, pair_ranks, byte_ids, scratch, character_ids)
    byte_ranks = _byte_ranks(byte_ids, pairs)
    return EncoderTables(
        byte_ids, byte_ranks, character_ids, pair_ranks, merged_ids, table, data, offsets, character_classes()
    )


def _check_settings(content: dict[str, Any], model: dict[str, Any]) -> None:
    if content.get("normalizer") is not None:
        raise UnsupportedTokenizer("it normalises text")
    parts = (content.get("pre_tokenizer") or {}).get("pretokenizers", [])
    if [_effective(part) for part in parts] != _PRE_TOKENIZER:
        raise UnsupportedTokenizer("its split rule is not GLM's")
    for name, value in _effective(model).items():
        if (value or None) != (_MODEL.get(name) or None):
            raise UnsupportedTokenizer(f"its model has {name} {value!r}")


def _effective(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}


def _byte_ranks(byte_ids: NDArray[np.int32], pairs: NDArray[np.int64]) -> NDArray[np.int32]:
    byte_of_id = {int(index): byte for byte, index in enumerate(byte_ids)}
    ranks = np.full(1 << 16, NO_RANK, np.int32)
    for rank in np.flatnonzero(np.isin(pairs, byte_ids).all(axis=1)):
        left, right = pairs[rank].tolist()
        ranks[byte_of_id[left] << 8 | byte_of_id[right]] = rank
    return ranks


def _spelling_tables(
    spellings: dict[bytes, int], size: int, look_up: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
    by_id = [b""] * size
    for spelling, index in spellings.items():
        by_id[index] = spelling
    data, offsets = np.frombuffer(b"".join(by_id), np.uint8), np.cumsum([0, *map(len, by_id)], dtype=np.int64)
    table = np.full(1 << (2 * size).bit_length() if look_up else 1, -1, np.int32)
    if look_up:
        fill_spelling_table(table, data, offsets)
    return data, offsets, table


def adversarial_texts() -> list[str]:
    """Texts on which encoders differ if they differ; some 60 kB, the same ones at any time.

    Every edge of a range of letters, numbers and spaces with both neighbours, alone and between letters and blanks;
    all one- and two-byte characters; runs of one character; white space and line ends in all orders; contractions in
    all cases; digits of several scripts; Chinese, Japanese, Korean, Thai and Arabic without and with marks; emoji
    joined, coloured and flagged; what looks like a special token; random mixtures.
    """
    edges = _edges_of_classes()
    draw = random.Random(0)  # its sequence is part of the language's definition
    spaces = ["".join(part) for part in itertools.product(" \n\r\t\u00a0\u3000", repeat=3)]
    contractions = [f"{a}'{b}{c}" for a in ("", "a", " ") for b in _CONTRACTIONS for c in ("", "x", " ", "'")]
    return [
        "",
        edges,
        " ".join(edges),
        "a".join(edges),
        "".join(map(chr, range(0x800))),
        "x".join(spaces),
        "".join(contractions),
        *(character * length for character in "a \n-0'字\u0301🙂" for length in (2, 31, 32, 33, 95, 97, 700)),
        *_SCRIPTS,
        *("".join(draw.choices(_ALPHABET, k=draw.randrange(1, 40))) for _ in range(300)),
    ]


def _edges_of_classes() -> str:
    classes = character_classes()
    edges = np.flatnonzero(np.diff(classes.astype(np.int8)))
    points = np.unique(np.concatenate([edges, edges + 1]))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


_CONTRACTIONS = ("s", "S", "t", "T", "re", "rE", "RE", "ve", "VE", "m", "M", "ll", "Ll", "LL", "d", "D", "ſ", "l", "r")
_SCRIPTS = (
    "数据并行与专家并行，训练1234567个词元。《规范》第３章：“引号”……",
    "カタカナとひらがな、漢字を混ぜた文。ｶﾅ㌔ 가나다라 한국어 띄어쓰기",
    "ภาษาไทยไม่มีช่องว่าง กำลัง हिन्दी में १२३ العربية مَعَ تَشْكِيل ٣٤٥ עִבְרִית",
    "Größe naïve e\u0301\u0301 Ǆ ß İ ı ŉ ﬁ ﬆ Å K Straße ÀÉ",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 ❤️‍🔥 1️⃣ #️⃣ \U000e0067 \ufeff\u200b\u2060\u202e",
    "<|endoftext|><|user|>[gMASK]<sop>/nothink<think></think> <|endoftext |> <| user|>",
    "x²+½ⅷ١٢٣ 3.14e-10 0x1F 1,000,000 10000000000 ２０２６年",
    "def f(x):\n\treturn  x  #  done\r\n\r\n\n   \n    if a:\n        b += 1;;\n",
    "\x00\x01\x1c\x1d\x1e\x1f\x7f\x85\ufffe\uffff\U0010ffff\ufffd \u2028\u2029\u180e\u1680",
    "Pneumonoultramicroscopicsilicovolcanoconiosis" * 5,
)
_ALPHABET = "  \n\r\t'sStrevemlLdaZ09١½Ⅷ你あ🙂\u200d\ufe0f\u0301\u00a0\u2028\u0085\u3000\x1c\0!?._-ſ<|>"
