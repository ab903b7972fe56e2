"""Elastic weight consolidation on several ranks is that of one, and what cannot be meant is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glmforge.checkpoint import StoredTensors, verify_checkpoint
from glmforge.checkpoint.convert import export_hf
from glmforge.errors import GlmforgeError
from glmforge.model import GlmMoe
from glmforge.observe.record_files import read_jsonl
from glmforge.recipes.fisher import write_fisher
from glmforge.recipes.train import train
from helpers.distributed import run_ranks
from helpers.models import randomize_, tiny_config
from helpers.tiny_data import TinyData

NUM_ROWS = 3
LAYOUTS: list[dict[str, Any]] = [
    {"dp_shard": 2, "ep": 2},
    {"dp_replicate": 2},
    {"tp": 2},
    {"cp": 2},
    {"pp": 2, "pipeline_schedule": "interleaved_1f1b", "micro_batch_size": 4, "pipeline_stages_per_rank": 1},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_data: TinyData) -> Path:
    """A published model and, measured by one process, its Fisher information."""
    root = tmp_path_factory.mktemp("elastic")
    config = tiny_config(vocab_size=512)
    model = GlmMoe(config)
    randomize_(model)
    export_hf(model.state_dict(), config, root / "published", dtype=torch.float32)
    measure(tiny_data, root, root / "fisher", {})
    return root


def sections(base: Path, parallel: dict[str, Any], fisher: Path | None = None) -> dict[str, Any]:
    ewc = None if fisher is None else {"fisher": str(fisher), "strength": 30.0}
    return {
        "init_from": str(base / "published"),
        "phases": [{"name": "main", "steps": 3, "seq_len": 32, "batch_size": 8}],
        # Adam makes full steps of gradients that are rounding alone: see helpers/equivalence.py.
        "optim": {"lr": 1e-2, "min_lr": 1e-2, "eps": 1e-3, "matrix_optimizer": "adamw", "grad_clip": 1e3},
        "regularization": {"ewc": ewc},
        "parallel": parallel,
    }


def measure(tiny_data: TinyData, base: Path, out: Path, parallel: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    write_fisher(tiny_data.run_config(base, **sections(base, parallel)), tiny_data.held_out, out, num_rows=NUM_ROWS)


def train_with(tiny_data: TinyData, base: Path, run: Path, parallel: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    train(tiny_data.run_config(run, **sections(base, parallel, base / "fisher")))


@pytest.fixture(scope="module")
def alone(base: Path, tiny_data: TinyData) -> Path:
    """One process's run with it."""
    train_with(tiny_data, base, base / "alone", {})
    return base / "alone"


@pytest.mark.parametrize(
    "parallel",
    [*LAYOUTS, pytest.param({"dp_shard": 2}, marks=pytest.mark.full)],
    ids=lambda parallel: ",".join(map(str, parallel)),
)
def test_measuring_and_training_on_two_ranks(
    parallel: dict[str, Any], base: Path, alone: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    for function, place in ((measure, "fisher"), (train_with, "run")):
        run_ranks(function, 2, tiny_data, base, tmp_path / place, parallel, timeout_s=200, init_group=False)
    assert verify_checkpoint(tmp_path / "fisher") == []
    expected, found = (StoredTensors(root / "fisher") for root in (base, tmp_path))
    assert expected.keys() == found.keys()
    for name in expected:  # fp32 sums in another order, relative to each tensor's norm
        assert (found[name] - expected[name]).norm() <= 1e-5 * expected[name].norm() + 1e-9, name
    records = zip(read_jsonl(tmp_path / "run/metrics.jsonl"), read_jsonl(alone / "metrics.jsonl"), strict=True)
    for number, (ours, theirs) in enumerate(records):
        assert (theirs["loss_ewc"] > 0) == (number > 0)  # nothing has moved before the first step
        for name in ("loss", "loss_ewc", "grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), (number, name)


def test_it_keeps_weights_near_their_start(base: Path, alone: Path, tiny_data: TinyData) -> None:
    train(tiny_data.run_config(base / "free", **sections(base, {})))
    start = StoredTensors(base / "fisher", "model.")
    fisher = StoredTensors(base / "fisher", "fisher.")
    moved = {}
    for run in ("alone", "free"):
        (checkpoint,) = (base / run / "checkpoints").glob("step-*")
        weights = StoredTensors(checkpoint, "model.")
        moved[run] = sum(float((fisher[n] * (weights[n] - start[n]).square()).sum()) for n in fisher)
    assert moved["alone"] < 0.8 * moved["free"]


def test_a_run_from_other_weights_says_so(base: Path, alone: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    config = tiny_data.run_config(tmp_path / "run", **(sections(base, {}, base / "fisher") | {"init_from": None}))
    train(config)
    told = [event["event"] for event in read_jsonl(config.output_dir / "events.jsonl")]
    assert "different weights" in told
    assert "different weights" not in [event["event"] for event in read_jsonl(alone / "events.jsonl")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"regularization": {"ewc": {"fisher": "nowhere"}}}, "regularization.ewc.fisher: nowhere"),
        (
            {"model": tiny_config(vocab_size=512, num_hidden_layers=2).model_dump()},
            "it lacks|of another shape",
        ),
        ({"model": tiny_config(vocab_size=640).model_dump()}, "with another shape: fisher.lm_head.weight"),
    ],
    ids=["no directory", "another model", "another shape"],
)
def test_the_fisher_information_of_something_else_is_refused(
    change: dict[str, Any], words: str, base: Path, tiny_data: TinyData, tmp_path: Path
) -> None:
    changed = sections(base, {}, base / "fisher") | {"init_from": None} | change
    with pytest.raises(GlmforgeError, match=words) as refused:
        train(tiny_data.run_config(tmp_path / "run", **changed))
    assert "\n" not in str(refused.value)


def test_measuring_needs_weights_and_an_empty_place(base: Path, tiny_data: TinyData, tmp_path: Path) -> None:
    config = tiny_data.run_config(tmp_path, **sections(base, {}))
    with pytest.raises(GlmforgeError, match="init_from: not set"):
        write_fisher(config.model_copy(update={"init_from": None}), tiny_data.train, tmp_path / "out", num_rows=1)
    with pytest.raises(GlmforgeError, match="already exists"):
        write_fisher(config, tiny_data.train, base / "fisher", num_rows=1)
    assert not (tmp_path / "out").exists()
