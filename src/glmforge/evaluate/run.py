"""An evaluation from start to end: prepared or resumed, run, and written."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.collective import all_gather
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
from glmforge.parallel.placement import local_chunk

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


@torch.no_grad()
def weights_digest(tensors: Mapping[str, Tensor], per_tensor: int = 64) -> str:
    """A digest of names, shapes and some values of every tensor.

    Ranks call this together with their parts; the digest is that of the whole model in one process.
    """
    mine: dict[tuple[str, str, str], dict[int, float]] = {}
    for name, tensor in tensors.items():
        local, offsets = local_chunk(tensor)
        places = torch.arange(0, tensor.numel(), max(1, tensor.numel() // per_tensor))
        indices = torch.stack(torch.unravel_index(places, tensor.shape)) - torch.tensor(offsets)[:, None]
        inside = ((indices >= 0) & (indices < torch.tensor(local.shape)[:, None])).all(0)
        values = local[tuple(indices[:, inside].to(local.device))].double().tolist()
        mine[name, str(tensor.shape), str(tensor.dtype)] = dict(zip(places[inside].tolist(), values, strict=True))
    whole: dict[tuple[str, str, str], dict[int, float]] = {}
    for part in all_gather(mine):
        for key, picked in part.items():
            whole.setdefault(key, {}).update(picked)
    content = [[*key, sorted(picked.items())] for key, picked in sorted(whole.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
