"""Seeds, runs and shares against the same rules in plain Python."""

from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glmforge.data.passages.normalised_words import fold_table
from glmforge.data.passages.passage_index import PassageIndex, build_index
from glmforge.data.passages.passage_search import MAX_GAP_WORDS, scan

Words = list[str]
WORDS = st.lists(st.sampled_from([f"word{letter}" for letter in "abcdefghij"]), max_size=60)


def as_bytes(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    offsets = np.concatenate([[0], np.cumsum([len(data) for data in encoded])]).astype(np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def index_of(passages: list[Words], n: int, max_items: int = 100) -> PassageIndex:
    return build_index(*as_bytes([" ".join(words) for words in passages]), np.arange(len(passages)), n, max_items)


def find(index: PassageIndex, text: np.ndarray, offsets: np.ndarray, run_words: int, share: float) -> np.ndarray:
    """What is found with the index, which is the second one of the scan, too: both must have the same hits."""
    hits, same = scan(text, offsets, fold_table(), index.table, index.table)
    np.testing.assert_array_equal(hits, same)
    return index.judge(hits, run_words, share)


def indexed(passages: list[Words], n: int, max_items: int) -> list[set[int]]:
    """Places of each passage whose n-gram is indexed: of few items, more than half its words different."""
    grams = [[tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in passages]
    return [
        {
            i
            for i, gram in enumerate(own)
            if 2 * len(set(gram)) > n and sum(gram in other for other in grams) <= max_items
        }
        for own in grams
    ]


def plain_find(
    text: Words, passages: list[Words], n: int, run_words: int, share: float, max_items: int
) -> list[tuple[int, int, int, bool]]:
    """(passage, longest run, words covered, whether by a run) of each place found, by trying everything."""
    found = []
    for number, (words, places) in enumerate(zip(passages, indexed(passages, n, max_items), strict=True)):
        hits = [(d, p) for d in range(len(text) - n + 1) for p in sorted(places) if text[d : d + n] == words[p : p + n]]
        searchable = {p + k for p in places for k in range(n)}
        if not places:
            continue
        span = max(places) + n - min(places)
        gap = n + max(MAX_GAP_WORDS, len(words) // 2)
        clusters: list[list[tuple[int, int]]] = []
        for hit in hits:
            if clusters and hit[0] - clusters[-1][-1][0] <= gap:
                clusters[-1].append(hit)
            else:
                clusters.append([hit])
        for cluster in clusters:
            run = max(longest_chain(cluster, hit, n) for hit in cluster)
            width = 2 * len(words) + n
            covered = max(
                len({p + k for d, p in cluster if first <= d and d + n - first <= width for k in range(n)})
                for first, _ in cluster
            )
            can_be = span >= min(run_words, np.ceil(0.75 * len(words)))
            is_run = can_be and run >= min(run_words, span)
            if is_run or covered >= max(run_words, np.ceil(share * len(searchable) - 1e-9)):
                found.append((number, run, covered, is_run))
    return found


def longest_chain(cluster: list[tuple[int, int]], hit: tuple[int, int], n: int) -> int:
    """Words of the run that begins with a hit: hits on its diagonal, each overlapping or touching the last."""
    last = hit[1]
    for place in sorted(p for d, p in cluster if d - p == hit[0] - hit[1] and p > hit[1]):
        if place - last > n:
            break
        last = place
    return last + n - hit[1]


AGAIN = ["worda", "wordb", "worda", "wordb"]


@settings(max_examples=300, deadline=None)
@example(text=AGAIN, passages=[AGAIN, ["wordb", "worda"]], n=2, more=0, max_items=1)
@given(
    text=WORDS,
    passages=st.lists(WORDS, min_size=1, max_size=3),
    n=st.integers(2, 4),
    more=st.integers(0, 3),
    max_items=st.sampled_from([1, 3]),
)
def test_found_is_what_trying_everything_finds(
    text: Words, passages: list[Words], n: int, more: int, max_items: int
) -> None:
    run_words, share = n + more, 0.5
    texts = as_bytes(["unrelated", " ".join(text)])
    found = find(index_of(passages, n, max_items), *texts, run_words, share)
    assert all(found[:, 0] == 1)
    got = [(int(row[1]), int(row[4]), int(row[5]), bool(row[6])) for row in found]
    assert sorted(got) == sorted(plain_find(text, passages, n, run_words, share, max_items))


def test_places_are_the_bytes_of_the_words_in_common() -> None:
    passage = [f"item{i}" for i in range(20)]
    text = "Before it, é. " + " ".join(passage[3:18]).upper() + "; after it."
    data, offsets = as_bytes(["", text])
    ((document, _, start, stop, run, covered, is_run),) = find(index_of([passage], 8), data, offsets, 13, 0.5).tolist()
    assert (document, run, covered, is_run) == (1, 15, 15, 1)
    assert bytes(data[start:stop]).decode() == " ".join(passage[3:18]).upper()


def test_two_copies_far_apart_are_two_places() -> None:
    passage = [f"item{i}" for i in range(15)]
    filler = [f"filler{i}" for i in range(200)]
    found = find(index_of([passage], 8), *as_bytes([" ".join(passage + filler + passage)]), 13, 0.5)
    assert len(found) == 2
    assert found[0, 3] < found[1, 2]


def test_n_grams_never_reach_from_one_document_into_the_next() -> None:
    passage = [f"item{i}" for i in range(15)]
    halves = [" ".join(passage[:7]), " " + " ".join(passage[7:])]
    assert len(find(index_of([passage], 8), *as_bytes(halves), 13, 0.5)) == 0
    assert len(find(index_of([passage], 8), *as_bytes(["".join(halves)]), 13, 0.5)) == 1


def test_rows_of_numbers_are_not_indexed() -> None:
    rows = ["1 2 3 4 5 6 7 8 9 10 11 12 13 14", "a a b b a a b b a a b b a a b b"]
    index = build_index(*as_bytes(rows), np.arange(2), 8, 10)
    assert index.num_searchable.tolist() == [0, 0]
    assert not index.searchable(13).any()


def test_tables_of_many_n_grams_hold_each_of_them() -> None:
    passages = [[f"p{number}w{i}" for i in range(30)] for number in range(300)]
    found = find(index_of(passages, 8), *as_bytes([" ".join(words) for words in passages]), 13, 0.5)
    assert found[:, 1].tolist() == list(range(300))
    assert (found[:, 4] == 30).all()
