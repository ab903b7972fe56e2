"""The two plots of `optimizer_quality.py`, in the style of the run report, with colours of their own for both modes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from glmforge.report.canvas import MUTED, SERIES, STYLE, to_svg

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
# Those of the run report's page (observe/style.html)
_COLOURS = """<style>
svg { --ink: #1c2126; --muted: #626b75; --rule: #dfe3e7; font-family: sans-serif;
  --series-1: #2a62b4; --series-2: #cf6a1d; --series-3: #2f8058; --series-4: #8152a8; }
@media (prefers-color-scheme: dark) { svg { --ink: #e4e7ea; --muted: #98a2ad; --rule: #30363d;
  --series-1: #74a9f0; --series-2: #f09a55; --series-3: #6cc396; --series-4: #bd93e0; } }
</style>"""


def draw(result: dict[str, Any], beside: Path | Literal[False]) -> None:
    """Write `muon_against_adamw.svg` and `balance.svg`, to `beside` if it is given."""
    directory = beside or PICTURES
    directory.mkdir(parents=True, exist_ok=True)
    _draw_optimizers(result, directory / "muon_against_adamw.svg")
    _draw_balance(result, directory / "balance.svg")


def _draw_optimizers(result: dict[str, Any], path: Path) -> None:
    seeds = result["optimizers"]["seeds"]
    target = float(np.mean([row["adamw_held_out"] for row in seeds]))
    reached = [row["muon_steps_to_adamws_held_out"] for row in seeds]
    with _plot(path, "held-out loss (nats/token)") as axes:
        for color, (name, label) in zip(SERIES, (("muon", "Muon"), ("adamw", "AdamW")), strict=False):
            _draw_seeds(axes, *_steps_and_values(result["curves"]["held_out"][name]), color, label)
        axes.axhline(target, color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
        if None not in reached:
            axes.axvline(float(np.mean(reached)), color=MUTED, linewidth=0.8, linestyle=(0, (3, 2)))
            text = f"AdamW's last loss after {np.mean(reached):.0f} of {result['optimizers']['steps']} steps"
            axes.annotate(text, (float(np.mean(reached)), target), (6, 6), textcoords="offset points", color=MUTED)


def _draw_balance(result: dict[str, Any], path: Path) -> None:
    with _plot(path, "max violation of the worst layer") as axes:
        for color, (name, curves) in zip(SERIES, result["curves"]["violation_worst_layer"].items(), strict=False):
            values = np.array([_moving_mean(curve, 10) for curve in curves])
            _draw_seeds(axes, np.arange(1, values.shape[1] + 1), values, color, name)
        axes.axvline(result["optimizers"]["steps"] / 2, color=MUTED, linewidth=0.8, linestyle=(0, (1, 1.5)))
        axes.set_ylim(bottom=0)


def _draw_seeds(axes: Axes, steps: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    """Every seed faintly and their mean: `values` [seeds, points]."""
    axes.plot(steps, values.T, color=color, alpha=0.3, linewidth=0.8)
    axes.plot(steps, values.mean(axis=0), color=color, label=label)


def _steps_and_values(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(curves[0])[:, 0], np.array(curves)[:, :, 1]


def _moving_mean(values: Sequence[float], window: int) -> list[float]:
    return [float(np.mean(values[max(0, index - window + 1) : index + 1])) for index in range(len(values))]


@contextmanager
def _plot(path: Path, label: str) -> Iterator[Axes]:
    with matplotlib.rc_context(STYLE):
        canvas = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = canvas.add_subplot()
        axes.set(xlabel="steps", ylabel=label)
        yield axes
        axes.legend()
        opening, rest = to_svg(canvas, path.stem).split(">", maxsplit=1)
        path.write_text(f"{opening}>{_COLOURS}{rest}", encoding="utf-8")
