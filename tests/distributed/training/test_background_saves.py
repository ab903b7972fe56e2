"""Saves beside training hold what was there at their step, however late they are copied."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from glmforge.checkpoint.format.manifest import FileRecord, read_manifest
from glmforge.checkpoint.format.store import list_checkpoints
from glmforge.config import RunConfig
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.distributed import run_ranks
from helpers.late_copies import LateCopies, late_copies
from helpers.tiny_data import TinyData

PHASES = [
    {"name": "first", "steps": 3, "seq_len": 32, "batch_size": 4},
    {"name": "second", "steps": 2, "seq_len": 16, "batch_size": 4, "capacity_factor": 1.5},
]


def config_for(tiny_data: TinyData, output_dir: Path, *, background: bool = True, **sections: Any) -> RunConfig:
    checkpoint = {"every_steps": 1, "keep_last": 9, "background": background, "verify_after_save": False}
    return tiny_data.run_config(
        output_dir,
        phases=PHASES,
        checkpoint=checkpoint,
        observe={"progress": False, "tensorboard": False, "evaluate_every": 2, "evaluate_tokens": 64},
        **sections,
    )


def with_readers(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"data": config.data.model_copy(update={"num_workers": 2})})


class AfterTheUpdate(Hook):
    """Lets copies begin that were not waited for; comes before the hook that saves."""

    def __init__(self, copies: LateCopies) -> None:
        self.copies = copies

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.copies.let_go()


def rank_train_with_late_copies(config: RunConfig) -> int:
    """Train; the number of copies that training waited for."""
    with late_copies() as copies:
        train(config, [AfterTheUpdate(copies)])
    return copies.num_waited_for


def shards_of_steps(config: RunConfig) -> list[dict[str, FileRecord]]:
    """Size and checksum of each file with tensors, newest step first."""
    manifests = map(read_manifest, list_checkpoints(config.output_dir / "checkpoints"))
    return [{name: file for name, file in m.files.items() if name.endswith(".distcp")} for m in manifests]


@pytest.mark.full
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_late_copies_are_those_of_the_step(tiny_data: TinyData, tmp_path: Path, num_ranks: int) -> None:
    foreground = config_for(tiny_data, tmp_path / "foreground", background=False)
    run_ranks(rank_train_with_late_copies, num_ranks, foreground, init_group=False)
    expected = shards_of_steps(foreground)
    assert len(expected) == 5
    assert expected[0].keys() == {f"__{rank}_0.distcp" for rank in range(num_ranks)}

    # The readers of the second phase are forked while the save of the first one's last step is under way.
    late = with_readers(config_for(tiny_data, tmp_path / "late"))
    waited = run_ranks(rank_train_with_late_copies, num_ranks, late, init_group=False)
    assert waited == [4] * num_ranks  # for all but the last save, which is made in the foreground
    assert shards_of_steps(late) == expected


class Unchanged(Hook):
    """Compares what the update left with what is there when the next gradient is, by value and by place in memory."""

    def __init__(self) -> None:
        self.left: dict[str, tuple[Tensor, int]] = {}
        self.num_compared = 0

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.left = {name: (local.clone(), local.data_ptr()) for name, local in _locals(trainer)}

    def on_gradients(self, trainer: Trainer) -> None:
        for name, local in _locals(trainer):
            if name in self.left:
                value, place = self.left[name]
                assert torch.equal(local, value), name
                assert local.data_ptr() == place, name
                self.num_compared += 1


def _locals(trainer: Trainer) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in trainer.backend.state_tensors().items():
        yield name, (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def rank_compare(config: RunConfig) -> tuple[int, int]:
    hook = Unchanged()
    train(config, [hook])
    return hook.num_compared, len(hook.left)


@pytest.mark.parametrize(
    ("num_ranks", "sections"),
    [
        (1, {"optim": {"matrix_optimizer": "adamw"}}),
        (2, {"parallel": {"dp_shard": 2, "reshard_after_forward": True}, "precision": {"compute": "bf16"}}),
        pytest.param(2, {"parallel": {"dp_shard": 2, "reshard_after_forward": False}}, marks=pytest.mark.full),
        pytest.param(2, {"parallel": {"dp_shard": 2, "cpu_offload": True}}, marks=pytest.mark.full),
        (2, {"parallel": {"ep": 2}}),
        (2, {"parallel": {"pp": 2, "micro_batch_size": 2}}),
    ],
    ids=str,
)
def test_nothing_that_is_saved_changes_between_update_and_gradient(
    tiny_data: TinyData, tmp_path: Path, num_ranks: int, sections: dict[str, Any]
) -> None:
    """What copying beside the next forward and backward pass rests on."""
    config = config_for(tiny_data, tmp_path / "run", **sections)
    for num_compared, num_tensors in run_ranks(rank_compare, num_ranks, config, init_group=False):
        assert num_compared == 4 * num_tensors > 0
