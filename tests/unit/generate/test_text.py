"""Text comes out in whole characters, and never a stop string or what may become one."""

import random

import pytest

from glmforge.data.tokens.special import SPECIAL_TOKENS
from glmforge.data.tokens.tokenizer import Tokenizer
from glmforge.generate.text import TextStream
from helpers.tiny_data import TinyData


@pytest.fixture(scope="module")
def tokenizer(tiny_data: TinyData) -> Tokenizer:
    return Tokenizer.load(tiny_data.tokenizer)


def pieces(tokenizer: Tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    stream = TextStream(tokenizer, stop)
    found = [stream.add(token) for token in ids] + [stream.finish()]
    assert stream.text == "".join(found)
    return [piece for piece in found if piece]


def test_no_character_is_cut(tokenizer: Tokenizer) -> None:
    """Bytes that are no learnt merge come one token each; a character of three bytes comes when it is whole."""
    ids = tokenizer.encode("a\u20acb")
    assert len(ids) == 5
    assert pieces(tokenizer, ids) == ["a", "\u20ac", "b"]
    assert pieces(tokenizer, ids[:3]) == ["a", "\ufffd"]


def test_any_tokens_give_the_text_that_the_tokenizer_gives(tokenizer: Tokenizer) -> None:
    """Half characters, wrong bytes and control tokens among them; ids past the vocabulary say nothing."""
    generator = random.Random(0)
    for _ in range(200):
        ids = [generator.randrange(600) for _ in range(generator.randrange(40))]
        silent = [token for token in ids if token not in tokenizer.stop_ids]
        assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(silent)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one STOP two", ("STOP",), "one "),
        ("one STOP", ("STOP", "e ST"), "on"),
        ("one STO two", ("STOP",), "one STO two"),
        ("aaab", ("aab",), "a"),
        ("ends with ST", ("STOP",), "ends with ST"),
        ("STOP", ("STOP",), ""),
        ("a\u20acb\u20acc", ("b\u20ac",), "a\u20ac"),
        ("one\n\n\ntwo", ("\n\n",), "one"),
    ],
)
def test_stop_strings(tokenizer: Tokenizer, text: str, stop: tuple[str, ...], expected: str) -> None:
    stream = TextStream(tokenizer, stop)
    for token in tokenizer.encode(text):
        stream.add(token)
        assert expected.startswith(stream.text)  # nothing is ever taken back
        if stream.stopped:
            break
    assert stream.stopped == (expected != text)
    stream.finish()
    assert stream.text == expected


def test_what_cannot_be_a_stop_string_is_not_held_back(tokenizer: Tokenizer) -> None:
    assert pieces(tokenizer, tokenizer.encode("xzaxab"), ("ab",)) == ["x", "z", "ax"]
    assert pieces(tokenizer, tokenizer.encode("xzaxac"), ("ab",)) == ["x", "z", "ax", "ac"]


def test_a_stop_string_that_may_not_stop_yet_is_text(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ("ab",))
    ids = tokenizer.encode("zabzab")
    given = [stream.add(token, may_stop=number > 3) for number, token in enumerate(ids)]
    assert stream.stopped
    assert "".join(given) == "zabz"


def test_control_tokens(tokenizer: Tokenizer) -> None:
    """Those that end a turn say nothing, others are spelt."""
    for token in SPECIAL_TOKENS:
        index = tokenizer.special_id(token)
        assert "".join(pieces(tokenizer, [index])) == ("" if index in tokenizer.stop_ids else token)
