"""Which candidates are taken: the first of each question, as many of each slot as wanted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge_corpus.synthesise.problem import normalised_question, pattern_hash, question_hash
from glmforge_corpus.synthesise.stage import Problems, choose, first_occurrences


def keys(values):
    return np.array([bytes([v]) * 16 for v in values], "V16")


def naive_choice(values, slots, quotas):
    """Oracle: slot by slot, then what is missing from the surplus, the slots' first surplus first."""
    seen, taken, spare = set(), [], []
    counts = [0] * len(quotas)
    for i, (value, slot) in enumerate(zip(values, slots, strict=True)):
        if value in seen:
            continue
        seen.add(value)
        if counts[slot] < quotas[slot]:
            taken.append(i)
        else:
            spare.append((counts[slot] - quotas[slot], i))
        counts[slot] += 1
    missing = sum(quotas) - len(taken)
    return sorted(taken + [i for _, i in sorted(spare)[: max(missing, 0)]])


@given(st.data())
def test_choice_is_what_the_plain_loop_takes(data):
    quotas = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    slots = sorted(data.draw(st.lists(st.integers(0, len(quotas) - 1), max_size=30)))
    values = data.draw(st.lists(st.integers(0, 12), min_size=len(slots), max_size=len(slots)))
    chosen = choose(first_occurrences(keys(values)), np.array(slots, np.int64), quotas)
    assert np.flatnonzero(chosen).tolist() == naive_choice(values, slots, quotas)


def test_questions_are_equal_up_to_case_and_layout():
    assert question_hash("What  is\n5?") == question_hash("what is 5?") != question_hash("what is 6?")
    assert pattern_hash("What is 5?") == pattern_hash("What is 1,234.5?") != pattern_hash("Where is 5?")
    assert normalised_question(" A\tb ") == "a b"


@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(1, 5))
def test_quotas_add_up(count, families, levels):
    options = Problems(count=count, families=Problems(count=1).families[:families], levels=(1, 2, 3, 4, 5)[:levels])
    quotas = options.quotas()
    assert sum(quotas) == count
    assert max(quotas) - min(quotas) <= 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("families", ["logics"], "no 'logics'"),
        ("levels", [0], "no '0'"),
        ("languages", ["de"], "no 'de'"),
        ("levels", [1, 1], "duplicate name"),
    ],
)
def test_unknown_options_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        Problems.model_validate({"count": 5, field: value})
