"""What is taken of a corpus: held-out parts, samples, repeated and altered documents."""

import json
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

from glmforge.data.documents.batch import BatchWriter, DocumentBatch, concatenate, read_batches
from glmforge.data.documents.document import is_held_out
from glmforge_corpus.extract.stage import Extract
from glmforge_corpus.pipeline.run import run_stages
from glmforge_corpus.shape.augment import Augment
from glmforge_corpus.shape.hold_out import HoldOut
from glmforge_corpus.shape.jsonl import Jsonl
from glmforge_corpus.shape.repeat import Repeat, repeat
from glmforge_corpus.shape.sample import Sample

COUNT = 300


@pytest.fixture(scope="module")
def documents() -> DocumentBatch:
    ids = [f"d{i}" for i in range(COUNT)]
    languages = ["en" if i % 3 else None for i in range(COUNT)]
    metadata = ['{"title": "About"}' if i % 2 else None for i in range(COUNT)]
    texts = [f"This is document {i}, which has a few words\nin two lines." for i in range(COUNT)]
    return DocumentBatch.from_columns(ids, texts, ["a", "b"] * (COUNT // 2), languages=languages, metadata=metadata)


@pytest.fixture(params=[1, 4])
def shards(documents, tmp_path, request):
    """The same documents in one shard and in four."""
    paths = [tmp_path / f"{number}.parquet" for number in range(request.param)]
    for number, path in enumerate(paths):
        with BatchWriter(path) as writer:
            writer.write(documents.take(np.arange(number, COUNT, request.param)))
    return paths


def _documents_of(shards) -> DocumentBatch:
    return concatenate(batch for shard in shards for batch in read_batches(shard) if len(batch))


def test_held_out_documents(shards, documents, tmp_path):
    kept, (statistics,) = run_stages([HoldOut(fraction=0.2)], tmp_path, shards=shards, seed=5)
    aside = {id_ for id_ in documents.ids if is_held_out(id_, 0.2, 5)}
    assert set(_documents_of(kept).ids) == set(documents.ids) - aside
    held_out = [shard.with_name("held_out.parquet") for shard in kept]
    assert set(_documents_of(held_out).ids) == aside
    assert statistics.counts["documents held out"] == len(aside)
    assert 30 < len(aside) < 90


@pytest.mark.parametrize("options", [{"fraction": 0.3}, {"documents": 40}, {"documents": 25, "by": "language"}])
def test_a_sample_does_not_depend_on_shards(documents, tmp_path, options):
    chosen = []
    for count in (1, 3):
        paths = [tmp_path / f"{count}-{number}.parquet" for number in range(count)]
        for number, path in enumerate(paths):
            with BatchWriter(path) as writer:
                writer.write(documents.take(np.arange(number, COUNT, count)))
        kept, _ = run_stages([Sample(**options)], tmp_path / f"out{count}", shards=paths, seed=1)
        chosen.append(sorted(_documents_of(kept).ids))
    assert chosen[0] == chosen[1]
    if "documents" in options:
        assert len(chosen[0]) == options["documents"] * (2 if "by" in options else 1)
    else:
        assert 60 < len(chosen[0]) < 120


def test_groups_of_a_sample(shards, tmp_path):
    kept, _ = run_stages([Sample(documents=10, by="source")], tmp_path / "a", shards=shards)
    assert Counter(_documents_of(kept).table.column("source").to_pylist()) == {"a": 10, "b": 10}
    everything, _ = run_stages([Sample(documents=10**6, by="language")], tmp_path / "b", shards=shards)
    assert len(_documents_of(everything)) == COUNT, "a group that has fewer gives all of them"


def test_another_seed_is_another_sample(shards, tmp_path):
    one, two = (
        set(_documents_of(run_stages([Sample(fraction=0.3)], tmp_path / str(seed), shards=shards, seed=seed)[0]).ids)
        for seed in (1, 2)
    )
    assert one != two


@pytest.mark.parametrize("options", [{}, {"fraction": 0.5, "documents": 3}, {"fraction": 1.5}, {"documents": 0}])
def test_samples_of_no_size(options):
    with pytest.raises(ValidationError):
        Sample(**options)


def test_repeated_documents(documents):
    wanted = np.array([0.0, 1.0, 2.0, 0.5, 1.5, np.nan, 99.0] * 42 + [1.0] * (COUNT - 294))
    copies = repeat(documents.with_score("repeat", wanted), most=3)
    times = Counter(id_.partition("~")[0] for id_ in copies.ids)
    counts = np.array([times[id_] for id_ in documents.ids])
    assert len(set(copies.ids)) == len(copies)
    assert (counts[wanted == 0] == 0).all()
    assert (counts[np.isnan(wanted) | (wanted == 1)] == 1).all()
    assert (counts[wanted == 2] == 2).all()
    assert (counts[wanted == 99] == 3).all()
    # 42 tosses of a fair coin lie outside of 9 ... 33 once in 10^4 times; these are always the same ones.
    assert set(counts[wanted == 0.5]) == {0, 1}
    assert 9 < counts[wanted == 0.5].sum() < 33
    assert set(counts[wanted == 1.5]) == {1, 2}


def test_repeating_needs_a_score(shards, tmp_path):
    with pytest.raises(ValueError, match="score 'repeat': documents have no such score"):
        run_stages([Repeat()], tmp_path, shards=shards)


@pytest.mark.parametrize("operation", ["metadata", "typing", "case", "lines"])
def test_altered_copies_stand_beside_originals(shards, documents, tmp_path, operation):
    stage = Augment(operations={operation: 0.5}, typing_rate=0.05)
    made, (statistics,) = run_stages([stage], tmp_path, shards=shards)
    texts = dict(zip(_documents_of(made).ids, _documents_of(made).texts, strict=True))
    originals = dict(zip(documents.ids, documents.texts, strict=True))
    assert originals.items() <= texts.items()
    copies = {id_.partition("#")[0]: text for id_, text in texts.items() if "#" in id_}
    assert statistics.counts[f"copies: {operation}"] == len(copies)
    assert 40 < len(copies) < 200
    for id_, text in copies.items():
        assert text != originals[id_]
        match operation:
            case "metadata":
                assert text == f"title: About\n\n{originals[id_]}"
            case "case":
                assert text.lower() == originals[id_].lower()
            case "lines":
                assert text.split() == originals[id_].split()
            case "typing":
                assert abs(len(text) - len(originals[id_])) < 10


def test_copies_do_not_depend_on_batches(documents, tmp_path):
    made = []
    for step in (COUNT, 7):
        path = tmp_path / f"{step}.parquet"
        with BatchWriter(path) as writer:
            for start in range(0, COUNT, step):
                writer.write(documents.slice(start, min(start + step, COUNT)))
        shards, _ = run_stages([Augment(operations={"typing": 0.5})], tmp_path / f"out{step}", shards=[path])
        made.append(sorted(zip(_documents_of(shards).ids, _documents_of(shards).texts, strict=True)))
    assert made[0] == made[1]


@pytest.mark.parametrize("compression", ["none", "gz", "zst"])
def test_json_lines_are_read_back(documents, tmp_path, compression):
    """By the pipeline's own reader, with ids, and alike whenever they are written."""
    path = tmp_path / "in.parquet"
    with BatchWriter(path) as writer:
        writer.write(documents.with_score("quality", np.linspace(0, 1, COUNT)))
    written = []
    for name in ("a", "b"):
        made, _ = run_stages([Jsonl(compression=compression)], tmp_path / name, shards=[path])
        (file,) = made[0].parent.glob("documents.jsonl*")
        written.append(file.read_bytes())
    assert written[0] == written[1]
    inputs = [{"source": "again", "path": str(file), "id_field": "id", "metadata": ["language", "scores"]}]
    stage = Extract.model_validate({"inputs": inputs}, strict=False)
    read = _documents_of(run_stages([stage], tmp_path / "c")[0])
    assert (read.ids, read.texts) == (documents.ids, documents.texts)
    assert json.loads(read.table.column("metadata")[1].as_py()) == {
        "language": "en",
        "scores": {"quality": pytest.approx(1 / (COUNT - 1), abs=1e-6)},
    }
    assert _documents_of(made).texts == documents.texts
