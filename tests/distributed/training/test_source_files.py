"""A source that keeps a buffer of its own on every rank: killed and resumed, on as many ranks and on fewer."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from glmforge.backend.native import NativeBackend
from glmforge.checkpoint import latest_checkpoint, verify_checkpoint
from glmforge.checkpoint.format.manifest import read_manifest
from glmforge.config.layout import Layout
from glmforge.config.schema import RunConfig
from glmforge.data.stream.batch import Batch
from glmforge.objectives.next_token import NextTokenObjective
from glmforge.parallel.world import World
from glmforge.training.hooks import CheckpointHook
from glmforge.training.source import BatchSource, Phase, Position, Range, StepInput
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer
from helpers.distributed import RankFailure, run_ranks
from helpers.models import run_config

ROWS, WIDTH, WAITING, STEPS = 2, 9, 6, 8


class Buffered(BatchSource):
    """Trains on the oldest rows of each of its buffers, and puts others at the end: what a batch is depends on all the
    batches before it. A rank begins with one buffer, and has more where it takes the place of several."""

    position = Position()

    def __init__(self, vocab_size: int, rank: int, phase: Phase) -> None:
        rows = torch.Generator().manual_seed(rank)
        self._buffers = [torch.randint(vocab_size, (WAITING, WIDTH), generator=rows)]
        self._vocab_size, self._phase = vocab_size, phase

    def next(self) -> StepInput | None:
        first = self.position.samples.get(self._phase.name, 0)
        if first >= STEPS * ROWS * 2:
            return None
        taken = torch.cat([buffer[:ROWS] for buffer in self._buffers])
        self._buffers = [
            torch.cat([buffer[ROWS:], (buffer[:ROWS] * 3 + buffer[-ROWS:] + 1) % self._vocab_size])
            for buffer in self._buffers
        ]
        lengths = ((WIDTH - 1,),) * len(taken)
        batch = Batch(taken[:, :-1], taken[:, 1:], lengths, tuple(range(len(taken))), (0,) * len(taken))
        self.position = self.position.after(self._phase.name, first + ROWS * 2, batch.num_tokens)
        return StepInput(batch, self._phase, lr=1e-2, first_sample=first, position=self.position)

    def leave_out(self, skipped: Mapping[str, Sequence[Range]]) -> None:
        assert not skipped

    def state_files(self) -> dict[str, bytes]:
        return {f"buffer-{i}.int64": buffer.numpy().tobytes() for i, buffer in enumerate(self._buffers)}

    def load_state_files(self, files: Sequence[Mapping[str, bytes]]) -> None:
        kept = [content for of_rank in files for _, content in sorted(of_rank.items())]
        self._buffers = [torch.from_numpy(np.frombuffer(c, np.int64).reshape(-1, WIDTH).copy()) for c in kept]

    def load_state_dict(self, state: Mapping[str, Any], position: Position) -> Sequence[str]:
        self.position = position
        return ()


class Seen(Hook):
    """Notes the losses, and dies in a step."""

    def __init__(self, dies_in: int | None) -> None:
        self.dies_in, self.losses = dies_in, dict[int, float]()

    def on_gradients(self, trainer: Trainer) -> None:
        if trainer.state.step + 1 == self.dies_in:
            os._exit(9)

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        self.losses[trainer.state.step] = result.losses["loss"]


def config_for(output_dir: Path, layout: Mapping[str, int]) -> RunConfig:
    return run_config(
        output_dir=str(output_dir),
        phases=[{"name": "main", "steps": STEPS, "seq_len": WIDTH - 1, "batch_size": ROWS * 2}],
        checkpoint={"every_steps": 2, "keep_last": 9, "background": False},
        parallel=dict(layout),
    )


def rank_train(output_dir: Path, layout: dict[str, int], dies_in: int | None = None) -> dict[int, float]:
    """The losses of the steps that are taken."""
    config = config_for(output_dir, layout)
    world = World.join(Layout(**layout), torch.device("cpu")) if dist.is_initialized() else World.single("cpu")
    phase = Phase("main", NextTokenObjective(config.phases[0], config.model.num_nextn_predict_layers))
    seen, checkpoints = Seen(dies_in), CheckpointHook(config, {}, "none")
    source = Buffered(config.model.vocab_size, world.data_rank, phase)
    trainer = Trainer(config, NativeBackend.build(config, world), source, [seen, checkpoints])
    checkpoints.resume(trainer)
    trainer.fit()
    return seen.losses


TWO, ONE, SAME_ROWS = {"dp_shard": 2}, {"dp_shard": 1}, {"tp": 2}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a run that nothing happens to."""
    first, second = run_ranks(rank_train, 2, tmp_path_factory.mktemp("whole"), TWO)
    assert first == second
    return dict(first)


@pytest.mark.parametrize(("ranks", "layout"), [(2, TWO), (1, ONE), (2, SAME_ROWS)], ids=["two", "one", "tp"])
def test_killed_and_resumed(tmp_path: Path, whole: dict[int, float], ranks: int, layout: dict[str, int]) -> None:
    with pytest.raises(RankFailure, match="code 9"):
        run_ranks(rank_train, 2, tmp_path, TWO, 6)
    newest = latest_checkpoint(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.name == "step-00000004"
    assert verify_checkpoint(newest) == []
    files = {name: file.size for name, file in read_manifest(newest).files.items() if name.startswith("source")}
    assert files == {f"source-0000{rank}-of-00002-buffer-0.int64": WAITING * WIDTH * 8 for rank in range(2)}
    resumed = run_ranks(rank_train, ranks, tmp_path, layout)
    after = {step: loss for step, loss in whole.items() if step > 4}
    # Sums in another order, over four steps, where the layout is another one: rounding of fp32.
    expected = after if layout == TWO else pytest.approx(after, rel=1e-4)
    assert resumed == [expected] * ranks
