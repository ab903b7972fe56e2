"""Problems of reasoning-gym with its own scorers (arXiv:2505.24760): over 100 families of puzzles, made from seeds.

**Scorers execute what a reply says**: several pass the answer to `eval` or to sympy's parser, which evaluates it. So
`score` belongs into a `pool.Pool` in the sandbox, with `packages()`.

A record keeps the whole entry, not its seed, so that another version of the package does not change the right answer.
"""

import importlib.util
import json
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from glmforge.errors import DataError
from glmforge.extras import needed_for
from glmforge.files import shown
from glmforge.verify.answers import after_reasoning, final_answer

_INSTRUCTION = "\n\nGive the final answer between <answer> and </answer>."
_OPENING, _CLOSING = "<answer>", "</answer>"


def records(name: str, size: int, seed: int, options: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Problems 0 to `size - 1` of a family: `id`, `source`, `messages` (the question), `verifier`.

    Args:
        options: settings of the family, as its configuration names them.

    Raises:
        DataError: no such family or setting, or one whose problems cannot be kept as JSON.
        MissingPackageError: reasoning-gym is not installed.
    """
    options = dict(options or {})
    dataset = _dataset(name, json.dumps({**options, "size": size, "seed": seed}))
    for index in range(size):
        given = dataset[index]
        try:
            entry = json.loads(json.dumps(given, allow_nan=False))
            is_kept = dataset.score_answer(given["answer"], entry) == dataset.score_answer(given["answer"], given)
        except (TypeError, ValueError):
            is_kept = False
        if not is_kept:
            raise DataError(f"reasoning-gym family '{name}': its problems cannot be kept as JSON; leave it out")
        yield {
            "id": f"{name}-{seed}-{index}",
            "source": f"reasoning-gym/{name}",
            "messages": [{"role": "user", "content": entry["question"] + _INSTRUCTION}],
            "verifier": {"kind": "reasoning_gym", "dataset": name, "options": options, "entry": entry},
        }


def score(verifier: Mapping[str, Any], reply: str) -> float:
    """The family's score of the answer: what `<answer>` holds, or the final answer. Partial ones may score, too."""
    answer = _answer(after_reasoning(reply))
    dataset = _dataset(verifier["dataset"], json.dumps({**verifier.get("options", {}), "size": 1, "seed": 0}))
    return min(1.0, max(0.0, float(dataset.score_answer(answer, verifier["entry"]))))


def packages() -> list[Path]:
    """The directories of packages that a sandboxed pool needs for `score`, beside the interpreter's own."""
    found = [importlib.util.find_spec(name) for name in ("glmforge", "reasoning_gym")]
    places = [Path(spec.origin).parents[1] for spec in found if spec is not None and spec.origin is not None]
    return list(dict.fromkeys(places))


def _answer(text: str) -> str | None:
    before, closing, _ = text.rpartition(_CLOSING)
    if closing and _OPENING in before:
        return before.rpartition(_OPENING)[2].strip()
    return final_answer(text)


@lru_cache(maxsize=256)
def _dataset(name: str, settings: str) -> Any:
    with needed_for("reasoning-gym"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    if name not in DATASETS:
        raise DataError(f"reasoning-gym: unknown family '{shown(name)}'; choose one of {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, **json.loads(settings))
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"reasoning-gym family '{name}': {shown(error)}") from None
