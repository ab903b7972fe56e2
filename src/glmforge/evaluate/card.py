"""A model card's section of scores: metadata that Hugging Face reads (`model-index`), and a table with the settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from glmforge.errors import DataError
from glmforge.evaluate.result import Result, Score, read_result

_COLUMNS = ("benchmark", "metric", "items", "score", "95 % interval", "finished", "cut", "asked")
_SHOWN = ("chat", "thinking", "num_fewshot", "max_new_tokens", "temperature", "top_p", "top_k", "num_samples", "seed")


def card_section(directories: Sequence[Path], name: str = "") -> str:
    """Markdown that begins with the YAML metadata.

    Args:
        name: of the model in the metadata; the last part of the first result's model by default.

    Raises:
        DataError: a result is missing or damaged, or none has a score.
    """
    results = [read_result(directory) for directory in directories]
    scored = [(result, score) for result in results for score in result.scores if score.score is not None]
    if not scored:
        raise DataError("no result has a score: there is nothing for a card")
    index = {"name": name or Path(results[0].model).name, "results": [_entry(*pair) for pair in scored]}
    metadata = yaml.safe_dump({"model-index": [index]}, sort_keys=False, allow_unicode=True)
    lines = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS)), *(_row(_cells(*pair)) for pair in scored)]
    versions = ", ".join(f"{package} {version}" for package, version in results[0].versions.items())
    notes = (
        "Score: all replies; finished: those that were not cut at the longest answer. Intervals at 95 %.",
        f"Measured with {versions}." if versions else "",
    )
    return (
        f"---\n{metadata}---\n\n## Evaluation\n\n" + "\n".join(lines) + "\n\n" + "\n".join(filter(None, notes)) + "\n"
    )


def _entry(result: Result, score: Score) -> dict[str, Any]:
    """A score as Hugging Face has it, in percent."""
    metric = {"type": score.metric, "name": score.metric, "value": round(100 * (score.score or 0.0), 2)}
    return {
        "task": {"type": "text-generation"},
        "dataset": {"type": score.benchmark, "name": score.benchmark, "args": {"items": score.num_items}},
        "metrics": [metric | {"args": _asked(result)}],
    }


def _asked(result: Result) -> dict[str, Any]:
    """The settings that a reader needs, but those that were left to the task."""
    parts = [part for name in ("asking", "generation") if isinstance(part := result.settings.get(name), dict)]
    return {name: part[name] for part in parts for name in _SHOWN if part.get(name) is not None}


def _cells(result: Result, score: Score) -> list[str]:
    interval = "" if score.interval is None else f"{score.interval.low:.1%} to {score.interval.high:.1%}"
    finished, cut = "", ""
    if score.num_finished is not None:
        finished = "none" if score.finished_score is None else f"{score.finished_score:.1%}"
        cut = f"{score.cut_share:.1%}"
    asked = ", ".join(f"{name} {value}" for name, value in _asked(result).items())
    return [score.benchmark, score.metric, f"{score.num_items:,}", f"{score.score:.1%}", interval, finished, cut, asked]


def _row(cells: Sequence[str]) -> str:
    """Pipes, line ends and markup in names from outside stay text."""
    safe = (" ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(safe)} |"
