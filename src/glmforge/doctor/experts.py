"""How the experts of a run or checkpoint are doing: usage, dead ones, similar ones, and where their biases move.

Usage comes from the run's records (`expert_load`, the mean of the last ones); biases and weights from a checkpoint,
read layer by layer. Two experts whose weights point the same way (cosine near 1) do the same work twice: upcycled
experts that never parted, or collapse. A bias that runs away shows a router that its bias cannot level.

Shapes: E experts, N numbers of an expert.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.manifest import find_problems
from glmforge.checkpoint.format.meta import read_meta
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.format.store import list_checkpoints, step_of
from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import read_jsonl

_BIAS, _PACKED = ".mlp.gate.e_score_correction_bias", (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")
_RECORDS = 20
NEARLY_DEAD = 0.1
"""Of the mean load."""
SIMILAR = 0.9
"""Cosine of two experts' weights from which they are named."""


class ExpertsError(GlmforgeError):
    """Neither records of expert loads nor a checkpoint with experts."""


@dataclass(frozen=True)
class LayerExperts:
    """Of one layer; None and empty is what is not known.

    Attributes:
        layer: among decoder layers, MTP layers last.
        load_E: share of the mean load, 1 is balance; from the records of the steps `load_steps`.
        dead, nearly_dead: experts with no load, and with less than a tenth of the mean.
        bias_min, bias_max, bias_drift: correction biases, and the most that one has moved since the checkpoint before.
        similar: pairs of experts with the cosine of their weights, the most similar first.
    """

    layer: int
    load_E: list[float]
    dead: list[int]
    nearly_dead: list[int]
    bias_min: float | None = None
    bias_max: float | None = None
    bias_drift: float | None = None
    similar: list[tuple[int, int, float]] | None = None


@dataclass(frozen=True)
class ExpertsReport:
    """`checkpoint` None: the run has none, so nothing is known of biases and weights."""

    load_steps: list[int]
    checkpoint: str | None
    compared_with: str | None
    layers: list[LayerExperts]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine_experts(path: Path, *, advance: Callable[[str], None] = lambda what: None) -> ExpertsReport:
    """Of a run, a checkpoint of it, or RUN@STEP. Raises `GlmforgeError`."""
    checkpoint = _checkpoint_of(path)
    run = path if (path / "metrics.jsonl").is_file() else None if checkpoint is None else checkpoint.parent.parent
    step = None if checkpoint is None or run == path else step_of(checkpoint)
    load_LE, steps = _loads(run, step)
    stored = None if checkpoint is None else StoredTensors(checkpoint, "model.", verify=False)
    names = [] if stored is None else sorted((n for n in stored if n.endswith(_BIAS)), key=_layer_of)
    if not names and not steps:
        raise ExpertsError(f"{path}: neither has records of expert_load nor a checkpoint with experts; train longer")
    if checkpoint is None or stored is None or not names:
        return ExpertsReport(steps, None, None, [_of_load(number, load_E) for number, load_E in enumerate(load_LE)])
    before = _before(checkpoint)
    old = None if before is None else StoredTensors(before, "model.", verify=False)
    layers = []
    for number, name in enumerate(names):
        advance(f"layer {_layer_of(name)}, {number + 1} of {len(names)}")
        bias_E = stored[name].double()
        usage = _of_load(_layer_of(name), load_LE[number] if number < len(load_LE) else [])
        drift = float((bias_E - old[name].double()).abs().max()) if old is not None and name in old else None
        about = {"bias_min": float(bias_E.min()), "bias_max": float(bias_E.max()), "bias_drift": drift}
        layers.append(LayerExperts(**{**vars(usage), **about, "similar": _similar(stored, name.removesuffix(_BIAS))}))
    return ExpertsReport(steps, checkpoint.name, None if before is None else before.name, layers)


def _checkpoint_of(path: Path) -> Path | None:
    if (path / "metrics.jsonl").is_file() and not list_checkpoints(path / "checkpoints"):
        return None
    found = find_checkpoint(path)
    read_meta(found)
    return found


def _before(checkpoint: Path) -> Path | None:
    if not checkpoint.name.startswith("step-"):
        return None
    older = (path for path in list_checkpoints(checkpoint.parent) if step_of(path) < step_of(checkpoint))
    return next((path for path in older if not find_problems(path, checksums=False)), None)


def _loads(run: Path | None, last_step: int | None) -> tuple[list[list[float]], list[int]]:
    """Load over the mean load, by router and expert, and the steps that it is the mean of."""
    if run is None or not (run / "metrics.jsonl").is_file():
        return [], []
    records = [
        r for r in read_jsonl(run / "metrics.jsonl") if _is_load(r.get("expert_load")) and _is_step(r.get("step"))
    ]
    records = [r for r in records if last_step is None or r["step"] <= last_step]
    recent = list(islice(reversed(records), _RECORDS))
    recent = [r for r in recent if [*map(len, r["expert_load"])] == [*map(len, recent[0]["expert_load"])]]
    if not recent:
        return [], []
    by_router = zip(*(r["expert_load"] for r in recent), strict=True)
    shares = [torch.tensor(of_steps, dtype=torch.float64).mean(0) for of_steps in by_router]
    return [(share_E * len(share_E)).tolist() for share_E in shares], sorted(r["step"] for r in recent)


def _is_load(value: object) -> bool:
    """Lists of one number per expert, of which there are any."""
    return isinstance(value, list) and all(
        isinstance(row, list) and row and all(isinstance(share, int | float) for share in row) for row in value
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _of_load(layer: int, load_E: list[float]) -> LayerExperts:
    dead = [expert for expert, load in enumerate(load_E) if load == 0]
    nearly = [expert for expert, load in enumerate(load_E) if 0 < load < NEARLY_DEAD]
    return LayerExperts(layer, [round(load, 4) for load in load_E], dead, nearly)


def _similar(stored: StoredTensors, prefix: str, most: int = 5) -> list[tuple[int, int, float]]:
    """The most similar pair, and all others above `SIMILAR`, at most `most`."""
    products_EE: Tensor | None = None
    for name in _PACKED:
        if prefix + name in stored:
            weights_EN = stored[prefix + name].flatten(1).float()
            added = weights_EN @ weights_EN.T
            products_EE = added if products_EE is None else products_EE + added
    if products_EE is None or len(products_EE) < 2:
        return []
    norms_E = products_EE.diagonal().clamp_min(1e-30).sqrt()
    cosines_EE = (products_EE / norms_E / norms_E[:, None]).triu(1).fill_diagonal_(-1)
    cosines_EE[torch.ones_like(cosines_EE, dtype=torch.bool).tril()] = -1
    values, places = cosines_EE.flatten().topk(min(most, cosines_EE.numel()))
    pairs = [
        (int(p) // len(norms_E), int(p) % len(norms_E), round(float(v), 4)) for v, p in zip(values, places, strict=True)
    ]
    return pairs[:1] + [pair for pair in pairs[1:] if pair[2] >= SIMILAR]


def _layer_of(name: str) -> int:
    return int(name.partition(".layers.")[2].partition(".")[0])
