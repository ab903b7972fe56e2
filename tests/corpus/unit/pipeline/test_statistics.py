"""Counts add up whatever the order."""

import json
from itertools import permutations

import numpy as np

from glmforge_corpus.pipeline.clean import run_blocks
from glmforge_corpus.pipeline.statistics import NUM_SCORE_BINS, SAMPLES_KEPT, Statistics, dump_json
from helpers.corpus import Shout, batch_of


def _part(number: int) -> Statistics:
    statistics = Statistics()
    texts = [f"text {number} {i}" + "x" * (number * i) for i in range(9)]
    batch = batch_of(texts, languages=["en", None, "zh"] * 3)
    statistics.add_read(batch)
    statistics.add_written(run_blocks([Shout(refuse=(str(number), "8xx"))], batch, statistics))
    statistics.add_quarantined("broken", f"file:{number}", "what stood there")
    return statistics


def test_merging_in_any_order_and_through_json():
    results = set()
    for order in permutations(range(4)):
        total = Statistics()
        for number in order:
            total.merge(Statistics.from_json(json.loads(json.dumps(_part(number).to_json()))))
        total.seconds = 0.0
        results.add(dump_json(total.to_json()))
    assert len(results) == 1


def test_one_place_may_hold_several_unreadable_records():
    statistics = Statistics()
    statistics.add_quarantined("broken", "file:1", "")
    statistics.add_quarantined("broken", "file:2-101", "", 100)
    assert statistics.quarantined == {"broken": 101}
    assert {sample["id"] for sample in statistics.samples["broken"]} == {"file:1", "file:2-101"}


def test_what_is_counted():
    statistics = Statistics()
    batch = batch_of(["one", "two!", "three?!", "ünder"], languages=["en", "en", None, "de"])
    statistics.add_read(batch)
    kept = run_blocks([Shout(refuse=("!", "?!"))], batch, statistics)
    statistics.add_written(kept)
    assert kept.texts == ["ONE", "ÜNDER"]
    value = statistics.to_json()
    assert value["read"] == {"documents": 4, "bytes": 20}
    assert value["written"] == {"documents": 2, "bytes": 9}
    assert value["failed"] == {"shout: ends in !": 2, "shout: ends in ?!": 1}
    assert value["removed"] == {"shout: ends in !": {"documents": 2, "bytes": 11}}, "the first rule is the reason"
    assert value["languages"] == {"de": {"documents": 1, "bytes": 6}, "en": {"documents": 1, "bytes": 3}}
    assert value["lengths"] == {"1": 1, "2": 1}
    assert value["counts"] == {"shouts": 4}
    assert sum(value["scores"]["loud"]) == 2
    assert value["scores"]["loud"][0] == value["scores"]["loud"][NUM_SCORE_BINS - 1] == 1
    assert {sample["text"] for sample in value["samples"]["shout: ends in !"]} == {"TWO!", "THREE?!"}


def test_samples_are_the_same_however_documents_are_cut():
    batch = batch_of([f"text {i}" for i in range(100)])
    whole, parts = Statistics(), Statistics()
    whole.add_removed("x", batch, np.arange(100))
    for start in range(0, 100, 10):
        parts.add_removed("x", batch.slice(start, start + 10), np.arange(10))
    assert whole.samples == parts.samples
    assert len(whole.samples["x"]) == SAMPLES_KEPT
