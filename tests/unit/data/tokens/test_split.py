"""The scanner cuts text where the regular expression does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from glmforge.data.compiled import readonly
from glmforge.data.tokens.characters import SPLIT_PATTERN, character_classes
from glmforge.data.tokens.fast_encoder import adversarial_texts
from glmforge.data.tokens.split import piece_borders

ORACLE = pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated")
ALPHABET = "  \n\r\t'sStTrReEvVmMlLdDſaZ09١½Ⅷ你あ🙂\u200d\u0301\u00a0\u2028\u0085\u3000\x1c\0!?._-"


def pieces(text: str) -> list[str]:
    data = readonly(np.frombuffer(text.encode(), np.uint8))
    ends = piece_borders(data, 0, len(data), character_classes()).tolist()
    return [bytes(data[first:last]).decode() for first, last in zip([0, *ends], ends, strict=False)]


def expected(text: str) -> list[str]:
    return [piece for piece, _ in ORACLE.pre_tokenize_str(text)]


def test_adversarial_texts():
    texts = adversarial_texts()[1:60]
    assert [pieces(text) for text in texts] == [expected(text) for text in texts]


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=12))
def test_borders_of_random_mixtures(text):
    assert pieces(text) == expected(text)


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=30))
def test_bytes_that_are_no_text_are_cut_within_their_borders(data):
    """What the pieces are is not said; the loop must end and stay inside."""
    array = readonly(np.frombuffer(data, np.uint8))
    ends = piece_borders(array, 0, len(array), character_classes())
    assert ends[-1] == len(data)
    assert (np.diff(ends, prepend=0) > 0).all()
