"""Runs of 13 words, against plain sets of tuples."""

from hypothesis import given
from hypothesis import strategies as st

from glmforge_corpus.synthesise.stage import RUN, Runs

LETTERS = st.lists(st.sampled_from("ab"), max_size=60)


def grams(words):
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


@given(st.lists(LETTERS, max_size=4), LETTERS)
def test_runs_are_found_wherever_they_stand(items, text):
    expected = any(grams(item) & grams(text) for item in items)
    assert Runs(" ".join(item) for item in items).meet(" ".join(text)) is expected


@given(LETTERS, LETTERS, st.lists(st.sampled_from("ab"), min_size=RUN, max_size=RUN))
def test_a_planted_run_is_always_found(before, behind, run):
    assert Runs([", ".join(run).upper()]).meet(" ".join([*before, *run, *behind]))


def test_rows_of_numbers_and_chinese_characters_count_as_words():
    row = "1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13"
    assert Runs([row]).meet(f"so ${row} = 91$")
    assert not Runs([row]).meet("1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 14")
    assert Runs(["小明有五个苹果和三个梨一共几个"]).meet("问：小明有五个苹果和三个梨，一共几个？")
