"""Best-fit rows of real shards: what is in them, and how they lie on disk."""

import functools
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmforge.data.stream import packing_build
from glmforge.data.stream.batch import IGNORED_LABEL
from glmforge.data.stream.packing import ensure_packing, open_packing
from glmforge.data.stream.packing_build import document_stretches
from glmforge.data.tokens.shard_writer import ShardWriter
from glmforge.data.tokens.shards import TokenShard
from glmforge.errors import DataError

END = 0
MakeShard = Callable[..., TokenShard]


@pytest.fixture(scope="module")
def shard_of_lengths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[int]], TokenShard]:
    """A shard of documents of given lengths; every token but the last of a document has an id of its own."""

    def make(lengths: Sequence[int]) -> TokenShard:
        prefix = tmp_path_factory.mktemp("packing") / "shard"
        tokens = np.arange(1, sum(lengths) + 1)
        tokens[np.cumsum(lengths) - 1] = END
        with ShardWriter(prefix, 100_000) as writer:
            writer.add(tokens, np.array(lengths))
            writer.finish("fingerprint", "test", num_text_bytes=len(tokens))
        return TokenShard(prefix)

    return make


documents = st.lists(st.integers(1, 30), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(lengths=documents, seq_len=st.integers(1, 20), document_mask=st.booleans())
def test_every_token_is_in_one_row(
    shard_of_lengths: Callable[[Sequence[int]], TokenShard], lengths: list[int], seq_len: int, document_mask: bool
) -> None:
    shard = shard_of_lengths(lengths)
    rows = open_packing(shard, seq_len, document_mask=document_mask)
    seen = np.zeros(shard.num_tokens, int)
    for index in range(rows.num_rows):
        ranges, window = rows.describe(index), rows.row(index)
        for start, stop in ranges:
            seen[start:stop] += 1
        used = sum(stop - start for start, stop in ranges)
        assert 0 < used <= seq_len == len(window.ids_S) == len(window.labels_S) == sum(window.lengths)
        assert window.ids_S[:used].tolist() == [t for a, b in ranges for t in shard.tokens(a, b).tolist()]
        assert window.ids_S[used:].tolist() == [END] * (seq_len - used)
        assert ranges == sorted(ranges)
    assert seen.tolist() == [1] * shard.num_tokens
    counts = rows.packing.counts
    assert counts.utilisation == shard.num_tokens / (rows.num_rows * seq_len)
    assert (counts.num_documents, counts.num_cut) == (len(lengths), sum(length > seq_len for length in lengths))


@settings(max_examples=60, deadline=None)
@given(lengths=documents, seq_len=st.integers(1, 20))
def test_only_longer_documents_are_cut_and_only_at_whole_rows(
    shard_of_lengths: Callable[[Sequence[int]], TokenShard], lengths: list[int], seq_len: int
) -> None:
    rows = open_packing(shard_of_lengths(lengths), seq_len)
    pieces = Counter(piece for index in range(rows.num_rows) for piece in rows.describe(index))
    starts = np.cumsum(lengths) - lengths
    expected = [
        (first, min(first + seq_len, start + length))
        for start, length in zip(starts.tolist(), lengths, strict=True)
        for first in range(start, start + length, seq_len)
    ]
    assert pieces == Counter(expected)


@settings(max_examples=60, deadline=None)
@given(lengths=documents, seq_len=st.integers(1, 20))
def test_labels_are_the_documents_next_tokens(
    shard_of_lengths: Callable[[Sequence[int]], TokenShard], lengths: list[int], seq_len: int
) -> None:
    """Every token but the first of a document is a label once; documents of a row are told apart."""
    shard = shard_of_lengths(lengths)
    rows = open_packing(shard, seq_len)
    labels: Counter[int] = Counter()
    for index in range(rows.num_rows):
        window, ranges = rows.row(index), rows.describe(index)
        assert list(window.lengths[: len(ranges)]) == [stop - start for start, stop in ranges]
        for id_, label in zip(window.ids_S.tolist(), window.labels_S.tolist(), strict=True):
            if label != IGNORED_LABEL:
                assert label in (id_ + 1, END)
                labels[label] += 1
    first = set((np.cumsum(lengths) - lengths).tolist())
    assert labels == Counter(t for i, t in enumerate(shard.tokens(0, shard.num_tokens).tolist()) if i not in first)


def test_without_a_mask_a_row_is_one_document(make_shard: MakeShard) -> None:
    shard = make_shard([[1, 2, END], [3, END], [4, 5, 6, 7, 8, 9, END]])
    rows = open_packing(shard, 6, document_mask=False)
    assert rows.row(0).ids_S.tolist() == [4, 5, 6, 7, 8, 9]
    assert rows.row(0).labels_S.tolist() == [5, 6, 7, 8, 9, END]  # of the rest, which is in the other row
    assert rows.row(1).ids_S.tolist() == [1, 2, END, 3, END, END]
    assert rows.row(1).labels_S.tolist() == [2, END, 3, END, END, IGNORED_LABEL]  # the rest is one more END
    assert all(rows.row(index).lengths == (6,) for index in range(2))


@pytest.mark.parametrize("document_mask", [True, False])
def test_filling_has_no_labels(make_shard: MakeShard, document_mask: bool) -> None:
    rows = open_packing(make_shard([[1, 2, END]]), 5, document_mask=document_mask)
    window = rows.row(0)
    assert window.ids_S.tolist() == [1, 2, END, END, END]
    assert window.labels_S.tolist() == [2, END, *[IGNORED_LABEL] * 3]
    assert window.lengths == ((3, 2) if document_mask else (5,))


def test_documents_that_truncation_would_cut(make_shard: MakeShard) -> None:
    shard = make_shard([[1] * 3, [2] * 4, [3] * 5, [4] * 13])  # at a stride of 6: 012|34 56|789.. 24
    assert ensure_packing(shard, 6).counts.num_cut_by_truncation == 2
    assert ensure_packing(shard, 6).counts.num_cut == 1


@pytest.mark.parametrize("stretch", [1, 2, 7, 50])
def test_the_same_bytes_however_the_index_is_read(
    make_shard: MakeShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stretch: int
) -> None:
    lengths = np.random.default_rng(0).integers(1, 25, 50)
    shard = make_shard([[1] * n for n in lengths.tolist()])
    whole = ensure_packing(shard, 16, tmp_path / "whole").path
    stretches = functools.partial(document_stretches, num_tokens=stretch)
    assert np.concatenate([part for _, part in stretches(shard)]).tolist() == lengths.tolist()
    monkeypatch.setattr(packing_build, "document_stretches", stretches)
    monkeypatch.setattr(packing_build, "_STRETCH_ITEMS", stretch)
    parts = ensure_packing(shard, 16, tmp_path / "parts").path
    assert whole.read_bytes() == parts.read_bytes()
    assert list(whole.parent.iterdir()) == [whole]


def test_a_stored_packing_is_used(make_shard: MakeShard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = make_shard([[1, 2, END], [3, END]])
    shares: list[float] = []
    path = ensure_packing(shard, 4, progress=shares.append).path
    assert path.parent == shard.prefix.parent
    assert path.name.startswith("shard.pack-4-")
    assert shares == sorted(shares)
    assert shares[-1] == 1
    monkeypatch.delattr(packing_build, "best_fit_decreasing")
    assert ensure_packing(shard, 4).path == open_packing(shard, 4).packing.path == path


def test_another_shard_or_length_has_another_packing(make_shard: MakeShard, tmp_path: Path) -> None:
    shards = make_shard([[1, 2, END]], "a/shard"), make_shard([[3, 4, END]], "b/shard")
    paths = {ensure_packing(shard, seq_len, tmp_path / "all").path for shard in shards for seq_len in (3, 4)}
    assert len(paths) == 4


def test_a_reading_process_maps_the_file_itself(make_shard: MakeShard) -> None:
    rows = open_packing(make_shard([[1, 2, END]] * 300), 7)
    pickled = pickle.dumps(rows)
    assert len(pickled) < 1000  # names, not arrays
    copy = pickle.loads(pickled)
    assert all(np.array_equal(copy.row(i).labels_S, rows.row(i).labels_S) for i in range(rows.num_rows))


@pytest.mark.parametrize("position", [0, 30, 256, -1])
def test_a_damaged_byte_is_found(make_shard: MakeShard, position: int) -> None:
    shard = make_shard([[1, 2, END]] * 20)
    path = ensure_packing(shard, 7).path
    contents = bytearray(path.read_bytes())
    contents[position] ^= 1
    path.write_bytes(contents)
    with pytest.raises(DataError, match=r"shard\.pack-7-.*delete it to rebuild it"):
        ensure_packing(shard, 7)


@pytest.mark.parametrize("size", [0, 100, 400])
def test_a_short_file_is_refused_on_opening(make_shard: MakeShard, size: int) -> None:
    shard = make_shard([[1, 2, END]] * 20)
    path = ensure_packing(shard, 7).path
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="delete it to rebuild it"):
        open_packing(shard, 7)


def test_the_packing_of_another_shard_is_refused(make_shard: MakeShard) -> None:
    shard, other = make_shard([[1, 2, END]], "one"), make_shard([[3, 4, END]], "two")
    ensure_packing(other, 3).path.replace(ensure_packing(shard, 3).path)
    with pytest.raises(DataError, match=r"one\.pack-3-.*belongs to another shard"):
        open_packing(shard, 3)


def test_a_directory_that_cannot_be_written(make_shard: MakeShard, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*data\.packing_dir") as caught:
        open_packing(make_shard([[1, 2, END]]), 3, packing_dir=tmp_path / "file" / "below")
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_nothing(make_shard: MakeShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DataError, match="No space left on device"):
        ensure_packing(make_shard([[1, 2, END]]), 3, tmp_path / "packings")
    assert list((tmp_path / "packings").iterdir()) == []


def test_row_out_of_range(make_shard: MakeShard) -> None:
    rows = open_packing(make_shard([[1, 2, END]]), 3)
    with pytest.raises(IndexError, match="row 1 of 1"):
        rows.row(1)
