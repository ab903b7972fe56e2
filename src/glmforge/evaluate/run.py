"""An evaluation from start to end: prepared or resumed, run, and written when it is whole."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from glmforge.data.files import disk_errors, write_whole
from glmforge.errors import DataError
from glmforge.evaluate.benchmarks.catalog import Benchmark
from glmforge.evaluate.benchmarks.harness import Asking, Model, run_benchmark
from glmforge.evaluate.benchmarks.language_model import Generation
from glmforge.evaluate.result import RESULT, Item, Result, Score, write_result
from glmforge.files import kind_of, parse_json, read_text
from glmforge.model.transformer import GlmMoe

ASKED, PREDICTIONS = "asked.json", "predictions.jsonl"
_PACKAGES = ("glmforge", "torch", "lm-eval", "math-verify", "transformers", "tokenizers")


def prepare(directory: Path, model: Mapping[str, object], settings: Mapping[str, object], *, overwrite: bool) -> None:
    """Make `directory`, or check that what lies there is of the same model and settings.

    Raises:
        DataError: it is of others, or it is finished.
    """
    asked = {"model": dict(model), "settings": dict(settings)}
    path = directory / ASKED
    if overwrite:
        for old in (*directory.glob("replies-*.jsonl"), path, directory / RESULT):
            old.unlink(missing_ok=True)
    if kind_of(path, error=DataError) == "file":
        earlier = parse_json(read_text(path, error=DataError), dict, source=str(path), error=DataError)
        if earlier != json.loads(json.dumps(asked)):
            changed = _changed(earlier, asked)
            raise DataError(
                f"{directory}: has replies of another model or other settings ({changed}); give another --out, or "
                "replace them with --force"
            )
        return
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asked, indent=2).encode())


def run(
    benchmarks: Sequence[Benchmark],
    asking: Asking,
    model: Model,
    on_benchmark: Callable[[Benchmark], Callable[[int], None] | None] | None = None,
) -> tuple[list[Score], list[Item]]:
    """The scores and items of all benchmarks, one after another."""
    scores: list[Score] = []
    items: list[Item] = []
    for benchmark in benchmarks:
        on_scored = None if on_benchmark is None else on_benchmark(benchmark)
        score, some = run_benchmark(benchmark, asking, model, on_scored)
        scores.append(score)
        items += some
    return scores, items


def finish(
    directory: Path,
    source: str,
    identity: Mapping[str, Any],
    settings: Mapping[str, Any],
    scores: Sequence[Score],
    items: Sequence[Item],
) -> Result:
    """Write the result, and the patches of SWE-bench in the form that its judge reads."""
    result = Result(
        model=source,
        weights=str(identity.get("weights", "")),
        step=identity.get("step"),
        tokens=identity.get("tokens"),
        settings=dict(settings),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        scores=tuple(scores),
    )
    lines = [json.dumps(_prediction(item, source)) + "\n" for item in items if item.benchmark == "swebench"]
    if lines:
        write_whole(directory / PREDICTIONS, "".join(lines).encode())
    write_result(directory, result, items)
    return result


def _prediction(item: Item, model: str) -> dict[str, str]:
    return {
        "instance_id": item.target,
        "model_name_or_path": model,
        "model_patch": item.written[0].extracted or "",
    }


def settings_of(asking: Asking, generation: Generation, benchmarks: Sequence[Benchmark]) -> dict[str, Any]:
    """All that replies and scores depend on, but the model."""
    return {
        "asking": asdict(asking),
        "generation": asdict(generation),
        "benchmarks": {one.name: one.data for one in benchmarks},
    }


def versions() -> dict[str, str]:
    """Of Python and the packages that scores depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@torch.no_grad()
def weights_digest(model: GlmMoe, per_tensor: int = 64) -> str:
    """What tells a model's weights from others': names, shapes and some values of every tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted({**dict(model.named_parameters()), **dict(model.named_buffers())}.items()):
        flat = tensor.detach().flatten()
        picked = flat[:: max(1, len(flat) // per_tensor)].double().cpu()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(picked.numpy().tobytes())
    return digest.hexdigest()


def _changed(earlier: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """The names of what differs."""

    def flat(value: Any, name: str = "") -> dict[str, Any]:
        if not isinstance(value, Mapping):
            return {name: value}
        return {k: v for key, one in value.items() for k, v in flat(one, f"{name}.{key}" if name else str(key)).items()}

    old, new = flat(earlier), flat(json.loads(json.dumps(asked)))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
