"""The loader alone: batches, sources, and what is said about them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glmforge.data.stream.phase import PhaseStream
from glmforge.doctor.profile import loader
from glmforge.doctor.profile.loader import DataProfile, LoaderSpeed, profile_data
from glmforge.errors import ConfigError
from helpers.tiny_data import TinyData


class Clock:
    """Goes on by itself a little whenever it is read, and otherwise as the sources say."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now


def test_sources_and_workers(tiny_data: TinyData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that takes longer than the other has that share; a rank's share is its part of the batch; batches that
    lie ready are not counted."""
    sources = [{"name": name, "path": str(tiny_data.train), "weight": 1} for name in ("quick", "slow")]
    data = {"tokenizer": str(tiny_data.tokenizer), "sources": sources}
    config = tiny_data.run_config(tmp_path / "run", data=data, parallel={"ep": 2})
    window, clock = PhaseStream._window, Clock()

    def takes_time(self: PhaseStream, place: Any) -> Any:
        clock.now += 3.0 if place.source == "slow" else 1.0
        return window(self, place)

    monkeypatch.setattr(PhaseStream, "_window", takes_time)
    monkeypatch.setattr(loader, "time", clock)
    found = profile_data(config, [0, 1], 1e6, data_ranks=2, step_s=1e-9)
    assert (found.samples_per_batch, found.seq_len) == (4, 32)
    assert {source.name: source.seconds for source in found.sources} == pytest.approx({"quick": 1, "slow": 3}, abs=1e-3)
    total = sum(source.samples * source.seconds for source in found.sources)
    for source in found.sources:
        assert source.share == pytest.approx(source.samples * source.seconds / total)
    # 10 batches: the first is not timed, nor the two that the worker has ready when it comes.
    assert [(speed.workers, speed.batches) for speed in found.speeds] == [(0, 9), (1, 7)]
    assert 1 / 12 <= found.speeds[0].batches_per_s <= 1 / 4  # of four rows
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
