"""Scores over runs and steps: a row for each result, the best of each benchmark marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glmforge.evaluate.result import read_result

Row = dict[str, Any]


def read_history(directories: Sequence[Path]) -> list[Row]:
    """Rows by model and step: of each benchmark the score, that of finished replies, the share of cut ones, and whether
    it is the best. None is where the results have different questions: these do not rank.

    Raises:
        DataError: a result is missing or damaged.
    """
    found = [(str(directory), read_result(directory)) for directory in directories]
    found.sort(key=lambda one: (one[1].model.partition("@")[0], one[1].step or 0, one[1].tokens or 0))
    rows: list[Row] = [{"result": n, "model": one.model, "step": one.step, "tokens": one.tokens} for n, one in found]
    results = [one for _, one in found]
    for name in dict.fromkeys(score.benchmark for one in results for score in one.scores):
        scores = [next((score for score in one.scores if score.benchmark == name), None) for one in results]
        known = [(score.score, score.fingerprint) for score in scores if score and score.score is not None]
        best = max(known)[0] if len({fingerprint for _, fingerprint in known}) == 1 and len(known) > 1 else None
        for row, score in zip(rows, scores, strict=True):
            row[name] = score and score.score
            row[f"{name}, finished"] = score and score.finished_score
            row[f"{name}, cut"] = score.cut_share if score and score.num_finished is not None else None
            row[f"{name}, best"] = best is not None and score is not None and score.score == best
    return rows
