"""The loader alone: batches, sources, and what is said about them."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmforge.data.stream.phase import PhaseStream
from glmforge.doctor.profile.loader import DataProfile, LoaderSpeed, profile_data
from glmforge.errors import ConfigError
from helpers.tiny_data import TinyData


def test_sources_and_workers(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that sleeps takes most of the time; a rank's share is its part of the batch; batches that lie ready are
    not counted."""
    sources = [{"name": name, "path": str(tiny_data.train), "weight": 1} for name in ("quick", "slow")]
    data = {"tokenizer": str(tiny_data.tokenizer), "sources": sources}
    config = tiny_data.run_config(tmp_path / "run", data=data, parallel={"ep": 2})
    window = PhaseStream._window

    def sleeping(self: PhaseStream, place: Any) -> Any:
        time.sleep(0.002 * (place.source == "slow"))
        return window(self, place)

    monkeypatch.setattr(PhaseStream, "_window", sleeping)
    found = profile_data(config, [0, 1], 0.5, data_ranks=2, step_s=1e-6)
    assert (found.samples_per_batch, found.seq_len) == (4, 32)
    assert {source.name: source.share > 0.5 for source in found.sources} == {"quick": False, "slow": True}
    # 10 batches: the first is not timed, nor the two that the worker has ready when it comes.
    assert [(speed.workers, speed.batches) for speed in found.speeds] == [(0, 9), (1, 7)]
    assert "the loader is the limit" in found.verdict
    assert "source 'slow'" in found.verdict
    assert not (tmp_path / "run").exists()


def test_the_fewest_workers_that_are_enough() -> None:
    speeds = [LoaderSpeed(0, 0.1, 10, 5.0), LoaderSpeed(2, 0.3, 10, 12.0), LoaderSpeed(4, 0.5, 10, 20.0)]
    found = DataProfile(8, 32, 0, speeds, [], step_s=0.1)
    assert found.verdict == "data.num_workers=2 is enough (1.2 batches in the time of a step); it is 0"
    assert replace(found, configured_workers=2).verdict.endswith("in the time of a step)")
    assert "at best 0.40" in replace(found, step_s=0.02).verdict
    assert "--training" in replace(found, step_s=None).verdict


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"stage": "dpo"}, {}, "stage dpo"),
        ({}, {"data_ranks": 3}, "--data-ranks: 3"),
        ({}, {"workers": [8]}, "ends after"),
    ],
)
def test_refusals(
    change: dict[str, Any], options: dict[str, Any], words: str, tiny_data: TinyData, tmp_path: Path
) -> None:
    config = tiny_data.run_config(tmp_path / "run").model_copy(update=change)
    with pytest.raises(ConfigError, match=words):
        profile_data(config, options.pop("workers", [0]), 0.1, **options)
