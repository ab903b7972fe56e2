"""The compiled encoder gives the library's ids, or says that it cannot."""

import json
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from glmforge.data.tokens import fast_encoder
from glmforge.data.tokens import tokenizer as tokenizer_module
from glmforge.data.tokens.bpe import MAX_VOCAB_SIZE, _train, _with_split_rule
from glmforge.data.tokens.encoder_tables import MAX_VOCABULARY
from glmforge.data.tokens.fast_encoder import FastEncoder, UnsupportedTokenizer, adversarial_texts
from glmforge.data.tokens.piece_encoder import new_cache
from glmforge.data.tokens.piece_merges import SCRATCH_PER_BYTE
from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.spelling import character_of_byte
from glmforge.data.tokens.text_chunks import chunk_of_texts
from glmforge.data.tokens.tokenizer import Tokenizer

MIXED = [
    "The forge is hot, and 数据并行 the smith's hammer falls 1234 times; isn't it loud?\n\n  def strike(iron):\n" * 3,
    "Größe, naïve, 你好世界 数据 数 据 привет приветы, 🙂🙃 and a tab\tand\r\nline ends.\n\n\n" * 3,
    "–—“”…„ “数” –数– ‘é’ é è ê ü ö " * 4,
]


@pytest.fixture(scope="module")
def rich() -> Tokenizer:
    """With merges of and across characters of several bytes."""
    learnt = json.loads(_train([chunk_of_texts(MIXED)], 420).to_str())
    learnt["added_tokens"] = [
        {"id": 420 + i, "content": token, "special": False, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, token in enumerate(SPECIAL_TOKENS)
    ]  # fmt: skip
    return Tokenizer(json.dumps(learnt))


@pytest.fixture(scope="module")
def encoder(rich) -> FastEncoder:
    found = rich.fast_encoder
    assert found is not None
    return found


def test_characters_are_taken_whole_only_where_that_changes_nothing(encoder, rich):
    taken = np.flatnonzero(encoder._tables.character_ids >= 0)
    assert 0 < len(taken) < 60
    texts = [f"“{chr(a)}{chr(b)}–" for a in taken for b in taken]
    assert encoder.encode_batch(texts) == rich.encode_batch_with_library(texts)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*"abe “”–数据你éü🙂\n1'", "\u0301", "the", "strike"]), max_size=80).map("".join))
def test_ids_are_the_librarys(encoder, rich, text):
    assert encoder.encode_batch([text, text]) == rich.encode_batch_with_library([text, text])


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_ids_of_any_text(encoder, rich, text):
    assert encoder.encode_batch([text]) == rich.encode_batch_with_library([text])


@pytest.mark.parametrize("length", [31, 32, 127, 128, 129, 70_000])
@pytest.mark.parametrize("unit", ["a", "数", "“"])
def test_pieces_of_every_length(encoder, rich, unit, length):
    text = unit * (length // len(unit.encode()))
    assert encoder.encode_batch([text]) == rich.encode_batch_with_library([text])


def test_a_small_cache_changes_nothing(encoder, rich):
    texts = [text for _ in range(2) for text in adversarial_texts() + MIXED]
    small = FastEncoder(encoder._tables)
    small._cache = new_cache(4)
    assert small.encode_batch(texts) == rich.encode_batch_with_library(texts)


def test_whole_pieces_are_looked_up_if_the_tokenizer_says_so(rich):
    content = json.loads(rich._plain_json)
    content["model"]["ignore_merges"] = True
    vocabulary = content["model"]["vocab"]
    vocabulary["Ġtheforge"] = len(vocabulary)  # no merge makes it
    tokenizer = Tokenizer(json.dumps(content | {"added_tokens": json.loads(rich._full.to_str())["added_tokens"]}))
    assert tokenizer.fast_encoder is not None
    text = "a theforge x"
    assert tokenizer.fast_encoder.encode_batch([text]) == tokenizer.encode_batch_with_library([text])
    assert vocabulary["Ġtheforge"] in tokenizer.encode(text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalises"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}, "split rule"),
        ({"model": {"dropout": 0.1}}, "dropout"),
        ({"model": {"byte_fallback": True}}, "byte_fallback"),
        ({"model": {"new_setting": 1}}, "new_setting"),
    ],
)
def test_other_kinds_of_tokenizer_are_refused(rich, change, reason):
    content = json.loads(rich._plain_json)
    model = content["model"] | change.pop("model", {})
    with pytest.raises(UnsupportedTokenizer, match=reason):
        FastEncoder.of(json.dumps(content | change | {"model": model}), rich.encode_batch_with_library)


def test_an_encoder_of_another_opinion_is_refused(rich):
    def wrong(texts):
        ids = rich.encode_batch_with_library(texts)
        ids[-1] = [*ids[-1], 0]
        return ids

    with pytest.raises(UnsupportedTokenizer, match="IDs differ"):
        FastEncoder.of(rich._plain_json, wrong)


def test_the_tokenizer_uses_it_for_much_text_and_tells_if_it_cannot(rich, monkeypatch, caplog):
    monkeypatch.setattr(tokenizer_module, "FAST_FROM_BYTES", 1)
    fresh = Tokenizer(rich._full.to_str())
    assert fresh.encode_batch(["the smith"]) == rich.encode_batch_with_library(["the smith"])
    assert "fast_encoder" in vars(fresh)
    other = Tokenizer(json.dumps(json.loads(rich._full.to_str()) | {"normalizer": {"type": "NFC"}}))
    assert other.encode_batch(["the smith"]) == rich.encode_batch_with_library(["the smith"])
    assert other.fast_encoder is None
    assert "normalises" in caplog.text


@pytest.mark.parametrize("limit", [1, 1 << 40])
def test_utf8_in_and_arrays_out(rich, monkeypatch, limit):
    monkeypatch.setattr(tokenizer_module, "FAST_FROM_BYTES", limit)
    tokenizer = Tokenizer(rich._full.to_str())
    data = np.frombuffer("xxThe forge你好".encode(), np.uint8)
    ids, lengths = tokenizer.encode_utf8(data, np.array([2, 11, 11, len(data)]), end_of_text=True)
    expected = [[*tokenizer.encode(text), tokenizer.end_of_text_id] for text in ("The forge", "", "你好")]
    assert ids.tolist() == [index for part in expected for index in part]
    assert lengths.tolist() == list(map(len, expected))
    assert ids.dtype == np.int32


def test_it_travels_to_other_processes(encoder):
    assert pickle.loads(pickle.dumps(encoder)).encode_batch(["the smith"]) == encoder.encode_batch(["the smith"])


def by_hand(merges: list[tuple[str, str]]) -> tuple[FastEncoder, Callable[[list[str]], list[list[int]]]]:
    """The encoder of a tokenizer with these merges alone, and the library's."""
    vocabulary = {character: index for index, character in enumerate(sorted(character_of_byte()))}
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = _with_split_rule(models.BPE(vocab=vocabulary, merges=merges))

    def encode_batch(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    return FastEncoder.of(tokenizer.to_str(), encode_batch), encode_batch


def test_the_heap_of_a_long_piece_stays_within_its_memory():
    """Each merge of a and b finds two new neighbours to join, and the old ones stay in the heap: it grows by half."""
    encoder, encode_batch = by_hand([("a", "b"), ("b", "a"), ("ab", "a"), ("ab", "ab")])
    size, untouched = 20_000, -7
    memory = np.full(2 * SCRATCH_PER_BYTE * size, untouched, np.int64)
    encoder._scratch = memory[: SCRATCH_PER_BYTE * size]
    text = "ab" * (size // 2)
    assert encoder.encode_batch([text]) == encode_batch([text])
    assert (memory[SCRATCH_PER_BYTE * size :] == untouched).all()


def test_memory_grows_with_the_longest_piece_and_not_with_the_text(rich):
    encoder = FastEncoder(rich.fast_encoder._tables)
    first = encoder._scratch
    words = "the forge " * 50_000
    assert encoder.encode_batch([words]) == rich.encode_batch_with_library([words])
    assert encoder._scratch is first
    texts = ["a b", f"the {'ha' * 40_000} smith", "x", "数" * 40_000 + " y"]
    assert encoder.encode_batch(texts) == rich.encode_batch_with_library(texts)
    assert len(encoder._scratch) == SCRATCH_PER_BYTE * 120_000


def test_a_tokenizer_without_merges():
    encoder, encode_batch = by_hand([])
    assert encoder.encode_batch(MIXED) == encode_batch(MIXED)


def test_more_merges_than_a_rank_can_tell_are_refused(rich, monkeypatch):
    monkeypatch.setattr(fast_encoder, "MAX_VOCABULARY", 420)
    FastEncoder.of(rich._plain_json, rich.encode_batch_with_library)
    content = json.loads(rich._plain_json)
    content["model"]["merges"] = [["a", "b"]] * 421
    content["model"]["vocab"].setdefault("ab", 419)
    with pytest.raises(UnsupportedTokenizer, match="421 merges, more than 420"):
        FastEncoder.of(json.dumps(content), rich.encode_batch_with_library)


def test_what_can_be_trained_can_be_encoded():
    assert MAX_VOCAB_SIZE == MAX_VOCABULARY
