"""What is left of a text when passages are cut out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge_corpus.decontaminate.stage import MAX_CUTS, cut


@pytest.mark.parametrize(
    ("places", "margin", "min_rest", "rest"),
    [
        ([(0, 3)], 0, 1, "defg hij klm"),
        ([(5, 6)], 0, 1, "abc\n\nhij klm"),
        ([(5, 6)], 3, 1, "klm"),
        ([(5, 6)], 3, 4, ""),
        ([(0, 16)], 0, 1, ""),
        ([(9, 12), (5, 6)], 0, 1, "abc\n\nklm"),
    ],
)
def test_cuts_are_moved_out_to_the_edge_of_words(
    places: list[tuple[int, int]], margin: int, min_rest: int, rest: str
) -> None:
    assert cut(b"abc defg hij klm", places, margin, min_rest) == rest


def test_a_text_that_would_be_cut_all_over_goes() -> None:
    places = [(i * 100, i * 100 + 5) for i in range(MAX_CUTS + 1)]
    text = ("word " * 400).encode()
    assert cut(text, places[:-1], 0, 1)
    assert cut(text, places, 0, 1) == ""


@given(
    st.text(st.sampled_from("ab é你🙂\n"), max_size=300),
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 60)), min_size=1, max_size=4),
    st.integers(0, 30),
)
def test_what_is_left_is_whole_characters_from_outside_the_places(
    text: str, places: list[tuple[int, int]], margin: int
) -> None:
    data = text.encode()
    inside = [(min(start, len(data)), min(start + length, len(data))) for start, length in places]
    rest = cut(data, inside, margin, 1)
    at = 0
    for byte in b"".join(rest.encode().split(b"\n\n")):
        # Every byte left is found in order, outside the places.
        while at < len(data) and (data[at] != byte or any(start <= at < stop for start, stop in inside)):
            at += 1
        assert at < len(data)
        at += 1
