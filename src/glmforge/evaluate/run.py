"""An evaluation from start to end: prepared or resumed, run, and written."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.meta import read_meta
from glmforge.data.files import disk_errors, write_whole
from glmforge.errors import CheckpointError, DataError
from glmforge.evaluate.benchmarks.catalog import Benchmark
from glmforge.evaluate.benchmarks.harness import Answered, Asked, Asking, Model, answer, requests_of, score
from glmforge.evaluate.benchmarks.model import Generation
from glmforge.evaluate.result import RESULT, Item, Result, Score, changed, write_result
from glmforge.files import kind_of, read_json
from glmforge.observe.environment import library_versions

ASKED, PREDICTIONS = "asked.json", "predictions.jsonl"
_PACKAGES = ("glmforge", "torch", "lm-eval", "math-verify", "transformers", "tokenizers")


def prepare(directory: Path, model: Mapping[str, object], settings: Mapping[str, object], *, overwrite: bool) -> None:
    """Make `directory`, or check that what it has is of the same model and settings. Raises `DataError`.

    Args:
        overwrite: delete replies and result instead, those of a judge too.
    """
    asked = json.loads(json.dumps({"model": dict(model), "settings": dict(settings)}))
    path = directory / ASKED
    if overwrite:
        for old in (*directory.glob("**/replies-*.jsonl"), path, directory / RESULT):
            old.unlink(missing_ok=True)
    if kind_of(path, error=DataError) == "file":
        earlier = read_json(path, dict, error=DataError)
        if names := [*changed(earlier, asked)]:
            named = ", ".join(names[:4] + ["..."] * (len(names) > 4))
            raise DataError(
                f"{directory}: has replies of another model or other settings ({named}); give another --out, or "
                "replace them with --force"
            )
        return
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asked, indent=2).encode())


def ask(
    benchmarks: Sequence[Benchmark],
    asking: Asking,
    model: Model,
    before: Callable[[list[list[Asked]]], bool] = lambda asked: True,
) -> list[Answered]:
    """The model's replies to all benchmarks, one after another. Ranks that share the model call this together.

    Args:
        before: called with the requests of each; where it returns False, nothing is asked.
    """
    asked = [requests_of(one, asking, model) for one in benchmarks]
    if not before(asked):
        return []
    return [answer(one, some, model) for one, some in zip(benchmarks, asked, strict=True)]


def score_all(answered: Sequence[Answered]) -> tuple[list[Score], list[Item]]:
    """The scores and items of all benchmarks."""
    rows = [score(one) for one in answered]
    return [row for row, _ in rows], [item for _, items in rows for item in items]


def finish(
    directory: Path,
    source: str,
    identity: Mapping[str, Any],
    settings: Mapping[str, Any],
    scores: Sequence[Score],
    items: Sequence[Item],
) -> Result:
    """Write the result, and the patches of SWE-bench in the form that its judge reads."""
    known = {name: identity[name] for name in ("weights", "step", "tokens") if name in identity}
    created, versions = datetime.now(UTC).isoformat(timespec="seconds"), library_versions(_PACKAGES)
    result = Result(
        model=source, **known, settings=dict(settings), versions=versions, created=created, scores=tuple(scores)
    )
    patches = [
        {"instance_id": item.target, "model_name_or_path": source, "model_patch": item.written[0].extracted or ""}
        for item in items
        if item.benchmark == "swebench"
    ]
    if patches:
        write_whole(directory / PREDICTIONS, "".join(json.dumps(patch) + "\n" for patch in patches).encode())
    write_result(directory, result, items)
    return result


def settings_of(asking: Asking, generation: Generation, benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """Everything besides the model that replies and scores depend on."""
    return {
        "asking": asdict(asking),
        "generation": asdict(generation),
        "benchmarks": {one.name: one.data for one in benchmarks},
    }


def trained_for(source: str) -> dict[str, object]:
    """`step` and `tokens` of a run or a checkpoint; nothing for other sources."""
    try:
        meta = read_meta(find_checkpoint(Path(source)))
    except CheckpointError:
        return {}
    return {"step": meta.step, "tokens": meta.tokens_consumed}
