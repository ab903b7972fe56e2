"""What a text looks like to someone who cannot read: shares of bytes, pairs of bytes, lines and words.

The features that tell programs from prose, computed in one pass over a bounded sample of a text's UTF-8: slices of
whole lines at its beginning, its end and evenly between. Each is a share (of bytes, lines or words) under a square
root, which spreads the small shares where the difference lies. None is named after a language; the words are two
short lists, of words that programming languages reserve and of words that prose cannot do without.
"""

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled

NUM_SLICES = 4
SLICE_BYTES = 256
"""1 kB of a text: some thirty lines of a program, at a cost below that of identifying prose."""

_BYTE_CLASSES = {
    "letter": b"abcdefghijklmnopqrstuvwxyz",
    "capital": b"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "digit": b"0123456789",
    "space": b" ",
    "brace": b"{}",
    "parenthesis": b"()",
    "bracket": b"[]",
    "semicolon": b";",
    "equals": b"=",
    "angle": b"<>",
    "underscore": b"_",
    "quote": b"\"'`",
    "full stop": b".",
    "comma": b",",
    "hash": b"#",
    "slash": b"/",
    "backslash": b"\\",
    "operator": b"*&|^~@%!+?",
    "dollar": b"$",
    "colon": b":",
    "hyphen": b"-",
    "tab": b"\t",
    "not ASCII": bytes(range(128, 256)),
}
_PAIRS = (
    "call",  # a letter, then (
    "sentence end",  # a letter, then a full stop, then white space
    "comma and space",
    "comment",  # // /* */
    "two-byte operator",  # -> => :: == != && || += <= >=
    "equals quote",
    "closing tag",  # </ />
    "empty call",  # ()
    "camel case",
    "snake case",
    "member",  # letter.letter
    "variable",  # $letter
    "markup",  # ]( `` :` as in Markdown and reStructuredText
)
_LINES = (
    "indented",
    "ends statement",  # ; { } at the end
    "ends open",  # ( [ , \ at the end
    "ends in colon",
    "starts with comment",  # # / * ; % or -- at the beginning
    "empty",
    "starts with closing",  # } ) ]
    "starts with angle",
    "ends in sentence",  # . ! ? or a letter at the end of a line of at least 40 bytes
    "long",  # over 200 bytes
    "short",  # at most 40 bytes, not empty
    "list item",  # - or * and a space at the beginning
    "underline",  # - = ~ three times at the beginning
)
_WORDS = ("reserved", "function word")

FEATURES = (*_BYTE_CLASSES, *_PAIRS, *_LINES, *_WORDS)
NUM_FEATURES = len(FEATURES)

_SYNTAX = (
    *("brace", "bracket", "equals", "angle", "underscore", "hash", "backslash", "dollar", "call", "comment"),
    *("two-byte operator", "equals quote", "closing tag", "empty call", "camel case", "snake case", "member"),
    *("variable", "markup", "indented", "ends statement", "ends in colon", "starts with comment"),
)
SYNTAX = np.array([FEATURES.index(name) for name in _SYNTAX])
"""What programs are written with and sentences are not; a text without any is no program, whatever it looks like."""

_RESERVED = """
abstract assert async await bool boolean break case catch char class const continue def default delete elif else endif
enum esac eval except export extends extern false False final finally float fn foreach func function global goto if
implements import include instanceof int interface isset lambda let local long match mod module mut namespace new nil
None not null nullptr override package pass print printf println private protected pub public raise require return
self sizeof static std str string struct super switch template then this throw throws trait True true try type typedef
typename undefined unset unsigned use using val var virtual void volatile while with yield echo fi done begin end impl
div span href px color margin padding font width height xmlns xml SELECT FROM WHERE CREATE TABLE INSERT INTO VALUES
ALTER DROP FUNCTION RETURNS INTEGER VARCHAR NULL PRIMARY KEY JOIN
"""
_FUNCTION_WORDS = """
the The of and to is that was are were they their which would have has been will can should may also these those its
it he she you we your our from by on at as be an der die das und ist nicht mit von den dem ein eine zu auf sie werden
le les des et est une dans pour que qui sur par du la el los las del en por una con es como il di che per non sono o
os da do um uma para em na och att som det av til og har
"""

_OFFSET_PAIRS = len(_BYTE_CLASSES)
_OFFSET_LINES = _OFFSET_PAIRS + len(_PAIRS)
_OFFSET_WORDS = _OFFSET_LINES + len(_LINES)
(
    _INDENTED,
    _ENDS_STATEMENT,
    _ENDS_OPEN,
    _ENDS_IN_COLON,
    _STARTS_WITH_COMMENT,
    _EMPTY,
    _STARTS_WITH_CLOSING,
    _STARTS_WITH_ANGLE,
    _ENDS_IN_SENTENCE,
    _LONG,
    _SHORT,
    _LIST_ITEM,
    _UNDERLINE,
) = range(_OFFSET_LINES, _OFFSET_WORDS)
_MOSTLY = 8
_OTHER = NUM_FEATURES  # bytes of no class are counted beyond the features
_WORD_SLOTS = 1024


def _class_table() -> NDArray[np.uint8]:
    table = np.full(256, _OTHER, np.uint8)
    for index, members in enumerate(_BYTE_CLASSES.values()):
        table[np.frombuffer(members, np.uint8)] = index
    return table


def _hash_word(word: bytes) -> int:
    value = 2166136261
    for byte in word:
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def _word_table() -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Hashes by slot (0 where empty), and the feature that a word of that hash counts for."""
    hashes, kinds = np.zeros(_WORD_SLOTS, np.uint32), np.zeros(_WORD_SLOTS, np.uint8)
    for kind, words in enumerate((_RESERVED, _FUNCTION_WORDS)):
        for word in words.split():
            value = _hash_word(word.encode())
            slot = value % _WORD_SLOTS
            while hashes[slot] not in (0, value):
                slot = (slot + 1) % _WORD_SLOTS
            hashes[slot], kinds[slot] = value, _OFFSET_WORDS + kind
    return hashes, kinds


CLASS_TABLE = _class_table()
WORD_HASHES, WORD_KINDS = _word_table()


def _pair_table() -> NDArray[np.uint8]:
    """`[65536]`: the feature that a pair of bytes counts for, by itself."""
    table = np.full(1 << 16, _OTHER, np.uint8)
    letters = range(256)
    is_letter = [chr(byte).isalpha() and byte < 128 for byte in letters]
    for left in letters:
        for right in letters:
            pair = bytes((left, right))
            name = _pair_name(pair, is_letter[left], is_letter[right])
            if name:
                table[left << 8 | right] = _OFFSET_PAIRS + _PAIRS.index(name)
    return table


def _pair_name(pair: bytes, left_letter: bool, right_letter: bool) -> str | None:
    fixed = {b", ": "comma and space", b'="': "equals quote", b"='": "equals quote", b"()": "empty call"}
    fixed |= dict.fromkeys((b"//", b"/*", b"*/"), "comment") | dict.fromkeys((b"</", b"/>"), "closing tag")
    fixed |= dict.fromkeys((b"->", b"=>", b"::", b"==", b"!=", b"&&", b"||", b"+=", b"<=", b">="), "two-byte operator")
    fixed |= dict.fromkeys((b"](", b"``", b":`"), "markup")
    if pair in fixed:
        return fixed[pair]
    if left_letter and pair[1:] in (b"(", b"_"):
        return "call" if pair[1:] == b"(" else "snake case"
    if pair[:1] == b"$" and right_letter:
        return "variable"
    return "camel case" if pair[:1].islower() and pair[1:].isupper() else None


PAIR_TABLE = _pair_table()
_FULL_STOP, _SENTENCE_END, _MEMBER = ord("."), _PAIRS.index("sentence end"), _PAIRS.index("member")


def _byte_set(members: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[np.frombuffer(members, np.uint8)] = True
    return table


_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_IS_LETTER = _byte_set(_LETTERS)
_IN_WORD = _byte_set(_LETTERS + b"_0123456789" + bytes(range(128, 256)))
_STATEMENT_ENDS = _byte_set(b";{}")
_OPENERS = _byte_set(b"(,[\\")
_COMMENTERS = _byte_set(b"#/*;%")
_CLOSERS = _byte_set(b"})]")
_SENTENCE_ENDS = _byte_set(b".!?" + _LETTERS + bytes(range(128, 256)))


@compiled
def _scan_line(text: NDArray[np.uint8], start: int, stop: int, counts: NDArray[np.int64]) -> None:
    """Count what lines are, for one line without its line end."""
    first, last = start, stop - 1
    while first < stop and (text[first] == 32 or text[first] == 9 or text[first] == 13):
        first += 1
    if first == stop:
        counts[_EMPTY] += 1
        return
    while text[last] == 32 or text[last] == 9 or text[last] == 13:
        last -= 1
    length = stop - start
    counts[_INDENTED] += first - start >= 2 or text[start] == 9
    counts[_ENDS_STATEMENT] += _STATEMENT_ENDS[text[last]]
    counts[_ENDS_OPEN] += _OPENERS[text[last]]
    counts[_ENDS_IN_COLON] += text[last] == 58
    counts[_STARTS_WITH_COMMENT] += _COMMENTERS[text[first]] or (text[first] == 45 and text[min(first + 1, last)] == 45)
    counts[_STARTS_WITH_CLOSING] += _CLOSERS[text[first]]
    counts[_STARTS_WITH_ANGLE] += text[first] == 60
    counts[_ENDS_IN_SENTENCE] += length >= 40 and _SENTENCE_ENDS[text[last]]
    counts[_LONG] += length > 200
    counts[_SHORT] += length <= 40
    if last - first >= 2 and (text[first] == 45 or text[first] == 42 or text[first] == 61 or text[first] == 126):
        counts[_LIST_ITEM] += text[first + 1] == 32
        counts[_UNDERLINE] += text[first] == text[first + 1] == text[first + 2]


@compiled
def _count_word(value: np.uint32, counts: NDArray[np.int64]) -> bool:
    """Count the word with this hash, if it is in a list."""
    slot = np.int64(value) & (_WORD_SLOTS - 1)
    while WORD_HASHES[slot]:
        if WORD_HASHES[slot] == value:
            counts[WORD_KINDS[slot]] += 1
            return True
        slot = (slot + 1) & (_WORD_SLOTS - 1)
    return False


@compiled
def _scan(text: NDArray[np.uint8], start: int, stop: int, folded: bool, counts: NDArray[np.int64]) -> tuple[int, int]:
    """Count in `text[start:stop]`, its capitals as small letters if `folded`; how many lines and words there were."""
    lines = words = 0
    line_start = start
    value = as_written = np.uint32(2166136261)
    in_word = False
    before, last = np.uint8(10), np.uint8(10)
    for at in range(start, stop):
        written = byte = text[at]
        if folded and 65 <= byte <= 90:
            byte = np.uint8(byte + 32)
        counts[CLASS_TABLE[byte]] += 1
        pair = PAIR_TABLE[np.int64(last) << 8 | np.int64(byte)]
        if pair != _OTHER:
            counts[pair] += 1
        if last == _FULL_STOP and _IS_LETTER[before]:
            counts[_OFFSET_PAIRS + _SENTENCE_END] += byte <= 32
            counts[_OFFSET_PAIRS + _MEMBER] += _IS_LETTER[byte]
        if _IN_WORD[byte]:
            value = np.uint32((value ^ np.uint32(byte)) * np.uint32(16777619))
            if folded:  # SELECT is a word of programs, and select one of sentences
                as_written = np.uint32((as_written ^ np.uint32(written)) * np.uint32(16777619))
            in_word = True
        elif in_word:
            if not (folded and _count_word(as_written, counts)):
                _count_word(value, counts)
            words += 1
            value, in_word = np.uint32(2166136261), False
            as_written = value
        if byte == 10:
            _scan_line(text, line_start, at, counts)
            lines += 1
            line_start = at + 1
        before, last = last, byte
    if in_word:
        if not (folded and _count_word(as_written, counts)):
            _count_word(value, counts)
        words += 1
    if line_start < stop:
        _scan_line(text, line_start, stop, counts)
        lines += 1
    return lines, words


@compiled
def _is_in_capitals(text: NDArray[np.uint8], start: int, stop: int) -> bool:
    """Whether hardly one letter of the beginning is small: then capitals mean nothing, neither names nor constants."""
    capitals = small = 0
    for at in range(start, min(stop, start + SLICE_BYTES)):
        capitals += 65 <= text[at] <= 90
        small += 97 <= text[at] <= 122
    return capitals > _MOSTLY * small


@compiled
def _line_start(text: NDArray[np.uint8], at: int, limit: int) -> int:
    """The beginning of the next line, if one begins before `limit`."""
    for near in range(at, limit):
        if text[near] == 10:
            return near + 1
    return at


@compiled
def text_features(text: NDArray[np.uint8], start: int, stop: int, features: NDArray[np.float64]) -> float:
    """The features of `text[start:stop]` into `features` `[NUM_FEATURES]`; signs of syntax per byte."""
    counts = np.zeros(NUM_FEATURES + 1, np.int64)
    lines = words = size = 0
    folded = _is_in_capitals(text, start, stop)
    whole = stop - start <= NUM_SLICES * SLICE_BYTES
    for index in range(1 if whole else NUM_SLICES):
        first, last = start, stop
        if not whole:
            begin = start + (stop - start - SLICE_BYTES) * index // (NUM_SLICES - 1)
            last = begin + SLICE_BYTES
            first = _line_start(text, begin, begin + SLICE_BYTES // 2) if index else start
        more_lines, more_words = _scan(text, first, last, folded, counts)
        lines, words, size = lines + more_lines, words + more_words, size + last - first
    for index in range(NUM_FEATURES):
        total = size if index < _OFFSET_LINES else lines if index < _OFFSET_WORDS else words
        features[index] = np.sqrt(counts[index] / max(total, 1))
    signs = 0
    for index in SYNTAX:
        signs += counts[index]
    return signs / max(size, 1)


@compiled
def batch_features(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """`[n, NUM_FEATURES]`"""
    num_texts = len(offsets) - 1
    features = np.zeros((num_texts, NUM_FEATURES))
    for index in range(num_texts):
        text_features(text, offsets[index], offsets[index + 1], features[index])
    return features
