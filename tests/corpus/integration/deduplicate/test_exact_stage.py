"""Exact deduplication from shards to shards."""

from typing import Any

import pytest

from glmforge_corpus.deduplicate.exact import ALL_SEEN, DUPLICATE_ID, RENAMED, SAME_TEXT, Exact

LONG = "a paragraph that is long enough to count as one, "


def test_the_first_of_equal_texts_stays(write_shards: Any, run_stage: Any) -> None:
    shards = [["One text", "Other"], [], ["one  TEXT\n", "third", "Other"]]
    ran = run_stage(Exact(), write_shards(shards))
    assert ran.ids == ["0.0", "0.1", "2.1"]
    assert ran.statistics.removed[SAME_TEXT].documents == 2
    by_bytes = run_stage(Exact(compare="bytes"), write_shards(shards, "again"), "bytes")
    assert by_bytes.ids == ["0.0", "0.1", "2.0", "2.1"]


def test_duplicate_ids_are_renamed_or_removed_with_their_text(write_shards: Any, run_stage: Any) -> None:
    shards = [[("a", "one"), ("a", "two"), ("b", "three")], [("a", "one"), ("a", "four"), ("b", "five")]]
    ran = run_stage(Exact(), write_shards(shards))
    assert ran.documents() == [("a", "one"), ("a~2", "two"), ("b", "three"), ("a~4", "four"), ("b~2", "five")]
    assert ran.statistics.removed[DUPLICATE_ID].documents == 1
    assert ran.statistics.counts[RENAMED] == 3


def test_a_new_name_that_is_taken_is_not_given_again(write_shards: Any, run_stage: Any) -> None:
    shards = [[("a", "one"), ("a", "two")], [("a~2", "three"), ("a~2", "four")]]
    ran = run_stage(Exact(), write_shards(shards))
    assert len(set(ran.ids)) == 4
    assert ran.ids[0] == "a"
    assert ran.ids[2:] == ["a~2", "a~2~2"]


def test_paragraphs_seen_before_are_cut(write_shards: Any, run_stage: Any) -> None:
    first, second = LONG * 2 + "first", LONG * 2 + "second"
    shards = [
        [f"{first}\nshort\n{first}", "short\nshort"],
        [f"{second}\nshort", f"New.\n{second.upper()}\nrest", f"{first}\n\n{second}\n", "end\n" + first],
    ]
    ran = run_stage(Exact(paragraphs="line", min_paragraph_bytes=50), write_shards(shards))
    assert [text for _, text in ran.documents()] == [
        f"{first}\nshort",
        "short\nshort",
        f"{second}\nshort",
        "New.\nrest",
        "end",
    ]
    assert ran.statistics.removed[ALL_SEEN].documents == 1
    assert ran.statistics.counts["exact: paragraphs cut"] == 5


def test_blocks_are_compared_as_one(write_shards: Any, run_stage: Any) -> None:
    shards = [[f"{LONG}\n{LONG}\n\nb"], [f"{LONG}\n{LONG}\n \nc", f"{LONG}\nd"]]
    ran = run_stage(Exact(paragraphs="block", min_paragraph_bytes=20), write_shards(shards))
    assert [text for _, text in ran.documents()] == [shards[0][0], "c", shards[1][1]]


def test_paragraphs_of_a_removed_document_are_not_counted(write_shards: Any, run_stage: Any) -> None:
    ran = run_stage(Exact(paragraphs="line", min_paragraph_bytes=20), write_shards([[LONG + "x"] * 3]))
    assert ran.ids == ["0.0"]
    assert ran.statistics.counts["exact: paragraphs cut"] == 0


@pytest.mark.parametrize("paragraphs", ["keep", "line", "block"])
def test_results_do_not_depend_on_batches_or_the_order_of_tasks(
    write_shards: Any, run_stage: Any, paragraphs: Any
) -> None:
    shards = [[(f"{k % 7}", f"{LONG}{k % 5}\n{LONG}{k % 3}\n\n{k % 11}") for k in range(s, s + 20)] for s in range(3)]
    stage = Exact(paragraphs=paragraphs, min_paragraph_bytes=10)
    one = run_stage(stage, write_shards(shards), "one")
    again = run_stage(stage, write_shards(shards, "cut", cut=3), "again", backwards=True)
    assert one.checksums() == again.checksums()
    assert len(set(one.ids)) == len(one.ids)


def test_check_only_counts_and_changes_nothing(write_shards: Any, run_stage: Any) -> None:
    shards = [[("a", LONG + "x"), ("b", LONG + "x"), ("a", f"{LONG}x\ny"), ("c", f"{LONG}x\n{LONG}x")]]
    ran = run_stage(Exact(paragraphs="line", min_paragraph_bytes=10, check_only=True), write_shards(shards))
    assert ran.documents() == shards[0]
    assert ran.statistics.removed == {}
    counts = ran.statistics.counts
    assert (counts[SAME_TEXT], counts[ALL_SEEN], counts[RENAMED], counts["exact: paragraphs cut"]) == (1, 1, 1, 3)
