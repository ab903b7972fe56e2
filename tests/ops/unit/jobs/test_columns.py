"""Rows as lines of text."""

from glmforge_ops.jobs.columns import aligned


def test_columns_are_below_each_other_and_nothing_is_padded_at_the_end() -> None:
    rows = [("name", "state", "why"), ("air", "running", ""), ("a-long-name", "-", "a node is out")]
    assert list(aligned(rows)) == [
        "name         state    why",
        "air          running",
        "a-long-name  -        a node is out",
    ]


def test_the_last_cell_keeps_what_it_begins_with() -> None:
    assert list(aligned([("a", " b "), ("cc", "d")])) == ["a    b", "cc  d"]
