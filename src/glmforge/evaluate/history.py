"""Scores over runs and steps: a row for each result, the best of each benchmark marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.evaluate.result import read_result

FACTS = ("result", "model", "step", "tokens")


def read_history(directories: Sequence[Path]) -> tuple[list[str], list[dict[str, Any]]]:
    """The benchmarks, and rows by model and step: `FACTS`, and of each benchmark the score, that of finished replies,
    the share of cut ones, and whether it is the best. Results with different questions do not rank.

    Raises:
        DataError: a result is missing or damaged.
    """
    results = [(directory, read_result(directory)) for directory in directories]
    results.sort(key=lambda one: (one[1].model.partition("@")[0], one[1].step or 0, one[1].tokens or 0))
    facts = [(str(path), one.model, one.step, one.tokens) for path, one in results]
    rows: list[dict[str, Any]] = [dict(zip(FACTS, values, strict=True)) for values in facts]
    keys: list[str] = []
    for name in dict.fromkeys(score.benchmark for _, one in results for score in one.scores):
        keys.append(key := f"benchmark {name}" if name in FACTS else name)
        scores = [next((score for score in one.scores if score.benchmark == name), None) for _, one in results]
        known = [(score.score, score.fingerprint) for score in scores if score and score.score is not None]
        ranks = len(known) > 1 and len({fingerprint for _, fingerprint in known}) == 1
        best = max(known)[0] if ranks else None
        for row, score in zip(rows, scores, strict=True):
            value = score and score.score
            row[key] = value
            row[f"{key}, finished"] = score and score.finished_score
            row[f"{key}, cut"] = score.cut_share if score and score.num_finished is not None else None
            row[f"{key}, best"] = value is not None and value == best
    return keys, rows
