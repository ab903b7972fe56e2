"""Documents in columns, in memory and on disk."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data.documents import batch as batches
from glmforge.data.documents.batch import BatchWriter, DocumentBatch, concatenate, read_batches
from glmforge.errors import DataError
from helpers.corpus import batch_of

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=12)


@given(TEXTS, st.integers(0, 12), st.integers(0, 12))
def test_the_bytes_of_a_slice(texts, a, b):
    start, stop = sorted((min(a, len(texts)), min(b, len(texts))))
    part = batch_of(texts).slice(start, stop)
    data, offsets = part.text_bytes, part.text_offsets
    assert [bytes(data[i:j]).decode() for i, j in itertools.pairwise(offsets)] == texts[start:stop]
    assert part.text_lengths.tolist() == [len(text.encode()) for text in texts[start:stop]]


@given(TEXTS)
def test_texts_that_a_loop_wrote(texts):
    offsets = np.cumsum([0] + [len(text.encode()) for text in texts])
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    batch = batch_of(["x"] * len(texts)).with_text_buffers(data, offsets)
    batch.table.validate(full=True)
    assert batch.texts == texts


def test_scores():
    batch = batch_of(["a", "b"]).with_score("quality", np.array([0.5, np.nan]))
    assert batch.score_names == ["quality"]
    np.testing.assert_array_equal(batch.score("quality"), np.array([0.5, np.nan], np.float32))
    assert batch.table.column("score_quality").to_pylist() == [0.5, None]
    assert batch.with_score("quality", np.zeros(2)).score_names == ["quality"]
    with pytest.raises(DataError, match=r"^score 'depth': documents have no such score"):
        batch.score("depth")


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9], list(range(1, 40))])
def test_a_file_depends_on_documents_not_on_batches(tmp_path, monkeypatch, cuts):
    monkeypatch.setattr(batches, "BATCH_BYTES", 100)
    monkeypatch.setattr(batches, "BATCH_DOCUMENTS", 7)
    documents = batch_of(["x" * (i * 37 % 90) for i in range(40)])
    for name, borders in (("whole", [0, 40]), ("cut", [0, *cuts, 40])):
        with BatchWriter(tmp_path / name) as writer:
            for start, stop in itertools.pairwise(borders):
                writer.write(documents.slice(start, stop))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "cut").read_bytes()
    read = list(read_batches(tmp_path / "cut"))
    assert concatenate(read).table.equals(documents.table)
    assert max(len(batch) for batch in read) <= 7
    assert all(batch.text_lengths[:-1].sum() < 100 for batch in read)


def test_a_shard_without_documents(tmp_path):
    with BatchWriter(tmp_path / "none"):
        pass
    assert sum(len(batch) for batch in read_batches(tmp_path / "none")) == 0


def test_a_damaged_shard_and_a_missing_column(tmp_path):
    with BatchWriter(tmp_path / "s") as writer:
        writer.write(batch_of(["a"]))
    assert [batch.table.schema.names for batch in read_batches(tmp_path / "s", ["id"])] == [["id"]]
    with pytest.raises(DataError, match="no column 'score_x'"):
        list(read_batches(tmp_path / "s", ["score_x"]))
    (tmp_path / "s").write_bytes((tmp_path / "s").read_bytes()[:-5])
    with pytest.raises(DataError, match=r"not readable as a document shard \(Parquet magic bytes not found"):
        list(read_batches(tmp_path / "s"))


def test_columns_are_cast_and_kept_together():
    batch = DocumentBatch.from_columns(
        ["a", "b"], pa.array(["x", "y"], pa.string()), ["s", "t"], languages=["en", None]
    )
    assert batch.table.schema.field("text").type == pa.large_string()
    assert batch.keep(np.array([False, True])).table.column("source").to_pylist() == ["t"]
    assert batch.take(np.array([1, 0])).ids == ["b", "a"]
