"""A run with adapters is killed at twenty moments, on either kind of storage: what each mode promises is what is left.

Moments are random: after some steps, when a rank has taken a step that others save, or when a checkpoint that is being
written has some number of files. What dies is one rank, all of them, or a node with its disk. In mode full the losses
are those of a run that nobody touched, to the bit, and so are the adapters and moments in the end. In mode lite they
are those of a run that is never stopped and whose moments are set to zero where the other had to begin anew: weights,
position and data are not lost.
"""

import random
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint.find import find_checkpoint
from glmforge.checkpoint.format.read import StoredTensors
from glmforge.checkpoint.node_local.consolidate import consolidate
from glmforge.checkpoint.node_local.transfer import Transfers
from glmforge.config import RunConfig
from glmforge.deploy.export import export_run
from glmforge.recipes.train import train
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.chaos import CHECKPOINT, NUM_NODES, Chaos, Strike, report, survivor_losses, whole_steps
from helpers.distributed import run_ranks
from helpers.lineage import restarts
from helpers.node_disks import Node
from helpers.tiny_data import TinyData

NUM_KILLS, NUM_STEPS, WORLD_SIZE = 20, 90, 4
ANYWHERE = ("one", "all", "before_note", "file", "file")
MOMENTS = [ANYWHERE, (*ANYWHERE, "node")]
"""What is drawn from, on shared storage and on nodes' disks."""


@pytest.fixture(scope="module")
def base(tiny_data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base")
    phases = [{"name": "main", "steps": 2, "seq_len": 32, "batch_size": 4}]
    train(tiny_data.run_config(directory / "run", phases=phases))
    export_run(directory / "run", directory / "hf", dtype="bf16")
    return directory / "hf"


@pytest.mark.chaos
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("mode", ["full", "lite"])
def test_killed_again_and_again(tiny_data: TinyData, base: Path, tmp_path: Path, mode: str, local: bool) -> None:
    sections = {
        "init_from": str(base),
        "lora": {"rank": 8, "targets": ["all-linear"]},
        "precision": {"compute": "bf16"},
        "parallel": {"dp_replicate": NUM_NODES, "dp_shard": WORLD_SIZE // NUM_NODES, "process_group_timeout_s": 1200},
        "fault_tolerance": {"hang_timeout_s": None},  # on a busy machine a step was seen to take 230 s
        "checkpoint": CHECKPOINT | {"mode": mode},
    }
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    killed = Chaos(tiny_data, tmp_path / "killed", NUM_STEPS, local, None, WORLD_SIZE // NUM_NODES, sections)
    random.seed(f"{mode} {local}")
    for _ in range(NUM_KILLS):
        kill(killed, Strike(random.choice(MOMENTS[local]), random.randrange(6), WORLD_SIZE))
    killed.run([], WORLD_SIZE)
    print(report(killed))
    per_node = WORLD_SIZE // NUM_NODES
    copies = [set(range(first, first + per_node)) for first in range(0, WORLD_SIZE, per_node)]
    killed.check(copies if local else ())
    whole = Chaos(tiny_data, tmp_path / "whole", NUM_STEPS, local=False, sections=sections)
    run_ranks(
        train_undisturbed,
        WORLD_SIZE,
        whole.config,
        restarts(killed.launches) if mode == "lite" else (),
        init_group=False,
        timeout_s=1200,
    )
    assert survivor_losses(killed) == [record["loss"] for record in whole.records()]
    kept = [len(list(root.iterdir())) for root in killed.roots()]
    assert max(kept) <= CHECKPOINT["keep_last"] + CHECKPOINT["keep_ephemeral"] + 2  # newer than what all have heard of
    states, expected = (StoredTensors(last_checkpoint(chaos)) for chaos in (killed, whole))
    names = {name for name in expected if not name.startswith("rng.")}  # which are not every node's
    assert names <= set(states)
    assert all(torch.equal(states[name], expected[name]) for name in names)
    assert any(name.startswith("optim.") for name in names) == (mode == "full")


def kill(chaos: Chaos, strike: Strike) -> None:
    """One launch that is killed: it has begun at the newest checkpoint there was, and has left one that is as new; with
    a node lost, as new as what it went on from, which both nodes or shared storage had."""
    before = whole_steps(chaos)
    assert chaos.strike(strike) != 0, "the run was done before it was killed"
    after, began = whole_steps(chaos), chaos.launches[-1].first_step
    # What all ranks had written and none had published is not among `before`.
    assert not began or began > max(before, default=0)
    kept = began - 1 if strike.kind == "node" else max(before, default=0)
    assert max(after, default=0) >= kept


def train_undisturbed(config: RunConfig, forget: Collection[int]) -> None:
    """Train in one go; after the steps of `forget` the moments are zero, as they are at first."""
    train(config, [Forget(forget)])


class Forget(Hook):
    name = "forget"

    def __init__(self, steps: Collection[int]) -> None:
        self.steps = steps

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if trainer.state.step in self.steps:
            for name, tensor in trainer.backend.state_tensors().items():
                if not name.startswith("model."):
                    tensor.detach().zero_()


def last_checkpoint(chaos: Chaos) -> Path:
    """Collected from the nodes' disks if it lies there."""
    run, transfers = chaos.config.output_dir, Transfers()
    if chaos.local:
        nodes = [Node(transfers, disk) for disk in chaos.local_dirs()]
        assert consolidate(run / "checkpoints", Path(chaos.config.name), nodes, transfers) is not None
    return find_checkpoint(run)
