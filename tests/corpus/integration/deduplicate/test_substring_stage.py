"""Cutting repeated passages, from shards to shards."""

import random
from typing import Any

from glmforge_corpus.deduplicate.substring import REASON, Substring


def words(seed: int, count: int) -> str:
    return " ".join(f"{random.Random(seed * 1000 + k).randrange(10**6)}" for k in range(count))


def test_later_occurrences_are_cut_at_words_and_the_first_stays(write_shards: Any, run_stage: Any) -> None:
    shared, short = words(1, 40), words(2, 12)  # about 270 and 80 bytes
    shards = [
        [f"{words(3, 30)} {shared} {words(4, 30)}", words(5, 30)],
        [f"{words(6, 50)} {shared} {words(7, 50)} {short}", f"{short} {words(8, 40)}"],
    ]
    ran = run_stage(Substring(min_bytes=150), write_shards(shards))
    texts = [text for _, text in ran.documents()]
    assert texts[:2] == shards[0]
    assert texts[2].split() == [*words(6, 50).split(), *words(7, 50).split(), *short.split()]
    assert texts[3] == shards[1][1]
    assert ran.statistics.counts["substring: passages"] == 1


def test_a_passage_repeated_within_a_document_is_cut(write_shards: Any, run_stage: Any) -> None:
    shared = words(1, 40)
    ran = run_stage(Substring(min_bytes=150), write_shards([[f"{shared} {words(2, 20)} {shared} end"]]))
    ((_, text),) = ran.documents()
    assert text.split() == f"{shared} {words(2, 20)} end".split()


def test_every_long_enough_passage_is_found_wherever_it_stands(write_shards: Any, run_stage: Any) -> None:
    generator = random.Random(0)
    alphabet = "abcdefghijklmnopqrstuvwxyzäöü中文"

    def noise(size: int) -> str:
        return "".join(generator.choices(alphabet, k=size))

    passages = [noise(150) for _ in range(40)]  # more than 150 bytes of UTF-8
    first = [noise(generator.randrange(200)) + passage + noise(generator.randrange(200)) for passage in passages]
    second = [noise(150 + generator.randrange(99)) + passage + noise(150) for passage in passages]
    ran = run_stage(Substring(min_bytes=150), write_shards([first, second]))
    texts = [text for _, text in ran.documents()]
    assert texts[:40] == first
    for passage, before, after in zip(passages, second, texts[40:], strict=True):
        # By chance a letter or two beside the passage are equal, too.
        assert len(before) - len(passage) - 4 <= len(after) <= len(before) - len(passage)


def test_a_document_with_little_left_is_removed(write_shards: Any, run_stage: Any) -> None:
    shared = words(1, 100)
    shards = [[shared], [f"{shared} {words(2, 5)}", f"{shared} {words(3, 80)}", shared]]
    ran = run_stage(Substring(min_bytes=150, min_left=0.2), write_shards(shards))
    assert ran.ids == ["0.0", "1.1"]
    assert ran.statistics.removed[REASON].documents == 2
    every = run_stage(Substring(min_bytes=150, min_left=0.0), write_shards(shards, "again"), "every")
    assert every.ids == ["0.0", "1.0", "1.1"]  # what is empty goes in any case


def test_very_many_equal_documents_and_monotony(write_shards: Any, run_stage: Any) -> None:
    shards = [[words(1, 60)] * 300, ["a" * 300_000, "ab" * 100_000, ""], [words(1, 60)] * 300]
    ran = run_stage(Substring(min_bytes=200), write_shards(shards))
    assert ran.ids == ["0.0", "1.2"]
    counts = ran.statistics.counts
    assert counts["substring: documents with passages"] == 599 + 2


def test_results_do_not_depend_on_batches_or_the_order_of_tasks(write_shards: Any, run_stage: Any) -> None:
    shards = [[f"{words(k % 5, 30)} {words(k % 7, 30)} {words(50 + k + s, 30)}" for k in range(12)] for s in range(3)]
    stage = Substring(min_bytes=100)
    one = run_stage(stage, write_shards(shards), "one")
    again = run_stage(stage, write_shards(shards, "cut", cut=5), "again", backwards=True)
    assert one.checksums() == again.checksums()
    assert one.statistics.counts["substring: passages"] > 20


def test_check_only_counts_and_changes_nothing(write_shards: Any, run_stage: Any) -> None:
    shards = [[words(1, 60)] * 3]
    ran = run_stage(Substring(min_bytes=100, check_only=True), write_shards(shards))
    assert [text for _, text in ran.documents()] == shards[0]
    assert ran.statistics.counts[REASON] == 2
