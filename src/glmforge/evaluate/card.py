"""A model card's section of scores: metadata that Hugging Face reads (`model-index`), and a table with the settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from glmforge.errors import DataError
from glmforge.evaluate.result import Result, Score, read_result

_COLUMNS = ("benchmark", "metric", "items", "score", "95 % interval", "finished", "cut", "asked")
_ASKED = ("chat", "thinking", "num_fewshot", "max_new_tokens", "temperature", "top_p", "top_k", "num_samples", "seed")


def card_section(directories: Sequence[Path], name: str = "") -> str:
    """Markdown that begins with the YAML metadata.

    Args:
        name: of the model in the metadata; the last part of the first result's model by default.

    Raises:
        DataError: a result is missing or damaged, none has a score, or they are of different weights.
    """
    results = [read_result(directory) for directory in directories]
    scored = [(result, score) for result in results for score in result.scores if score.score is not None]
    if not scored:
        raise DataError("no result has a score: there is nothing for a card")
    if len({result.weights for result in results} - {""}) > 1:
        raise DataError("the results are of different weights: write a card for each model")
    index = {
        "name": name or Path(results[0].model.partition(" at ")[0]).name,  # of a server "NAME at URL"
        "results": [_entry(*pair) for pair in scored],
    }
    metadata = yaml.safe_dump({"model-index": [index]}, sort_keys=False, allow_unicode=True)
    table = [_row(_COLUMNS), _row(["---"] * len(_COLUMNS)), *(_row(_cells(*pair)) for pair in scored)]
    versions = dict.fromkeys(f"{package} {version}" for one in results for package, version in one.versions.items())
    notes = ["Score: all replies; finished: those that were not cut at the longest answer. Intervals at 95 %."]
    notes += [f"Measured with {', '.join(versions)}."] if versions else []
    return "\n".join([f"---\n{metadata}---\n\n## Evaluation\n", *table, "", *notes, ""])


def _entry(result: Result, score: Score) -> dict[str, Any]:
    """A score as Hugging Face has it; shares in percent."""
    asked = _asked(result)
    if score.num_finished is not None:
        asked |= {"finished_score": score.finished_score, "cut_share": score.cut_share}
    value = score.score or 0.0
    value = round(100 * value, 2) if 0 <= value <= 1 else value
    return {
        "task": {"type": "text-generation"},
        "dataset": {"type": score.benchmark, "name": score.benchmark, "args": {"items": score.num_items}},
        "metrics": [{"type": score.metric, "name": score.metric, "value": value, "args": asked}],
    }


def _asked(result: Result) -> dict[str, Any]:
    """The settings that a reader needs, without those that were left to the task."""
    parts = [part for name in ("asking", "generation") if isinstance(part := result.settings.get(name), dict)]
    return {name: part[name] for part in parts for name in _ASKED if part.get(name) is not None}


def _cells(result: Result, score: Score) -> list[str]:
    text, asked = score.text, ", ".join(f"{name} {value}" for name, value in _asked(result).items())
    return [
        score.benchmark,
        score.metric,
        f"{score.num_items:,}",
        text.score,
        text.interval,
        text.finished,
        text.cut,
        asked,
    ]


def _row(cells: Sequence[str]) -> str:
    """Pipes, line ends and markup in names from outside stay text."""
    safe = (" ".join(cell.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(safe)} |"
