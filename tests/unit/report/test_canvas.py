from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from glmforge.observe.metrics import Record
from glmforge.observe.run import RunDirectory, RunLog
from glmforge.report.canvas import _moving_mean, limit_spikes, series, smoothing_window, tick


def _run(metrics: list[Record]) -> RunLog:
    return RunLog(RunDirectory(Path("run")), {}, "", {}, metrics, [], [])


def test_series_leaves_out_absent_and_non_finite_values() -> None:
    values = [3.0, float("nan"), 2.0, float("inf"), 1.0]
    records: list[Record] = [{"tokens": 10 * i, "loss": value} for i, value in enumerate(values)]
    tokens, loss = series(_run([*records, {"tokens": 50}]), "loss")
    assert tokens.tolist() == [0, 20, 40]
    assert loss.tolist() == [3, 2, 1]
    assert len(series(_run(records), "lr")[0]) == 0


@pytest.mark.parametrize("window", [1, 3, 9])
def test_moving_mean_of_a_line_is_the_line_where_the_window_fits(window: int) -> None:
    line = np.arange(20.0)
    inside = slice(window // 2, 20 - window // 2)
    # Differences of running sums of integers: exact in doubles.
    assert (_moving_mean(line, window)[inside] == line[inside]).all()
    assert _moving_mean(line, window)[0] == line[: window // 2 + 1].mean()


@pytest.mark.parametrize(("num_values", "window"), [(1, 1), (29, 1), (30, 5), (250, 5), (600, 13), (100_000, 2001)])
def test_the_smoothing_window_grows_with_the_run_and_is_odd(num_values: int, window: int) -> None:
    assert smoothing_window(num_values) == window


def test_a_spike_does_not_flatten_the_curve_and_the_start_stays_in_view() -> None:
    values = np.linspace(9, 2, 1000)
    values[500] = 1e6
    axes = Figure().add_subplot()
    limit_spikes(axes, values)
    low, high = axes.get_ylim()
    assert low < 2 < 9 < high < 10


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0, "0"),
        (2e-4, "2e-4"),
        (2.5e-5, "2.5e-5"),
        (0.25, "0.25"),
        (7.5, "7.5"),
        (200_000, "200k"),
        (1.5e6, "1.5M"),
    ],
)
def test_tick_labels_are_short(value: float, label: str) -> None:
    assert tick(value) == label
