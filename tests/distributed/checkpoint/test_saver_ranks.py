"""Background saves of several ranks, each with a disk of its own: what they agree on, and what survives a node."""

import logging
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Shard

import glmforge.checkpoint.save as save_module
from glmforge.checkpoint import list_checkpoints, load_latest, verify_checkpoint
from glmforge.checkpoint.format.store import step_of
from glmforge.checkpoint.node_local.parts_of_ranks import read_parts
from glmforge.checkpoint.policy.saver import CheckpointSaver
from glmforge.config.checkpoint import CheckpointConfig
from glmforge.errors import CheckpointError
from helpers.checkpoints import make_meta
from helpers.distributed import RankFailure, run_ranks

RANKS_PER_NODE = 2


def saved_in(folder: Path) -> list[Path]:
    """All that lies among the checkpoints, half or whole, but for the mark that one was whole."""
    return [path for path in (folder / "checkpoints").iterdir() if path.name != ".ever-whole"]


def full_tensors(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    shapes = {"model.even": (8, 4), "model.uneven": (5, 3), "optim.short": (1, 7)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def sharded(full: dict[str, Tensor]) -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(t, mesh, [Shard(0)]) for name, t in full.items()} | {"optim.plain": torch.ones(3)}


def disk(root: Path) -> Path:
    """This rank's node's disk."""
    return root / f"disk-{dist.get_rank() // RANKS_PER_NODE}"


def make_saver(root: Path, **config: object) -> CheckpointSaver:
    settings = {"local_dir": disk(root), "keep_ephemeral": 2} | config
    return CheckpointSaver(root / "checkpoints", CheckpointConfig.model_validate(settings), run_name="test")


def save(saver: CheckpointSaver, *steps: int, ephemeral: bool = True) -> None:
    for step in steps:
        saver.save(step, sharded(full_tensors(step)), make_meta(step), ephemeral=ephemeral)
        # Training goes on with its own messages: the two must not meet.
        value = torch.tensor(float(dist.get_rank()))
        for _ in range(20):
            dist.all_reduce(value)
        saver.wait()


def resume(root: Path) -> tuple[int, str, list[str]]:
    """The step that is loaded, from which directory, and this rank's warnings."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("glmforge").addHandler(handler)
    tensors = sharded({name: torch.full_like(t, -1) for name, t in full_tensors(0).items()})
    path, meta = load_latest(root / "checkpoints", tensors, local_root=disk(root) / "test")
    for name, expected in full_tensors(meta.step).items():
        tensor = tensors[name]
        assert isinstance(tensor, DTensor)
        assert torch.equal(tensor.full_tensor(), expected), name
    return meta.step, str(path.relative_to(root)), [record.getMessage() for record in records]


def save_in_background(root: Path) -> list[tuple[int, str | None, int]]:
    saver = make_saver(root)
    save(saver, 1, ephemeral=False)
    save(saver, 2, 3, 4)
    return [(report.step, report.error, report.num_bytes) for report in saver.poll()]


def test_on_one_node_the_local_one_is_read_where_it_is(tmp_path):
    reports = run_ranks(save_in_background, 2, tmp_path)
    assert reports[0] == reports[1]
    assert [(step, error) for step, error, _ in reports[0]] == [(1, None), (2, None), (3, None), (4, None)]
    assert [step_of(path) for path in list_checkpoints(tmp_path / "disk-0" / "test")] == [4, 3]
    assert run_ranks(resume, 2, tmp_path) == [(4, "disk-0/test/step-00000004", [])] * 2
    # One rank on that node, as after an elastic restart with fewer: it finds the parts of both.
    assert run_ranks(resume, 1, tmp_path) == [(4, "disk-0/test/step-00000004", [])]


@pytest.mark.parametrize("ranks", [4, 3])
def test_parts_of_several_nodes_come_together_on_shared_storage(tmp_path, ranks):
    """4 ranks on two nodes, then 4 or 3 (one on the second node)."""
    run_ranks(save_in_background, 4, tmp_path)
    for node in (0, 1):
        parts, problems = read_parts(tmp_path / f"disk-{node}" / "test" / "step-00000004")
        assert [part.rank for part in parts] == [2 * node, 2 * node + 1]
        assert not problems
    assert run_ranks(resume, ranks, tmp_path) == [(4, "checkpoints/step-00000004", [])] * ranks
    assert verify_checkpoint(tmp_path / "checkpoints" / "step-00000004") == []
    assert run_ranks(resume, 1, tmp_path)[0][:2] == (4, "checkpoints/step-00000004")


def test_half_a_checkpoint_is_named_once_and_the_one_before_taken(tmp_path):
    run_ranks(save_in_background, 4, tmp_path)
    (tmp_path / "disk-1").rename(tmp_path / "replaced node")
    outcomes = run_ranks(resume, 4, tmp_path)
    assert [outcome[:2] for outcome in outcomes] == [(1, "checkpoints/step-00000001")] * 4
    assert [len(warnings) for _, _, warnings in outcomes] == [2, 0, 0, 0]  # steps 4 and 3, said by rank 0
    assert "the parts of rank 2, rank 3 are on none of this run's nodes" in outcomes[0][2][0]


def mix_saves(root: Path) -> None:
    """Step 2 is saved twice, and node 1 has kept its part of the first time."""
    saver = make_saver(root)
    save(saver, 1, ephemeral=False)
    save(saver, 2)
    old, kept = disk(root) / "test" / "step-00000002", root / "kept"
    dist.barrier()
    if dist.get_rank() == 2:
        old.rename(kept)
    dist.barrier()
    save(saver, 2)
    dist.barrier()
    if dist.get_rank() == 2:
        old.rename(root / "new")
        kept.rename(old)


def test_parts_of_two_saves_of_a_step_are_no_checkpoint(tmp_path):
    run_ranks(mix_saves, 4, tmp_path)
    assert run_ranks(resume, 4, tmp_path)[0][0] == 1


def fail_on_rank_1(root: Path, local: bool, stage: str) -> list[str | None]:
    saver = make_saver(root, max_failed_saves=1, **({} if local else {"local_dir": None}))
    save(saver, 1, ephemeral=False)
    if dist.get_rank() == 1:
        refuse(stage)
    dist.barrier()
    try:
        save(saver, 2, 3, 4, ephemeral=False)
    except CheckpointError as error:
        return [report.error for report in saver.poll()] + [str(error)]
    return []


def refuse(stage: str) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    setattr(save_module, stage, fail)


@pytest.mark.parametrize(
    ("local", "stage"), [(False, "check_written"), (True, "check_written"), (True, "write_part"), (True, "_copy_parts")]
)
def test_what_fails_on_one_rank_fails_on_all_with_the_same_words(tmp_path, local, stage):
    with_too_many = run_ranks(fail_on_rank_1, 2, tmp_path, local, stage)
    assert with_too_many[0] == with_too_many[1]
    good, first, second, raised = with_too_many[0]
    assert good is None
    assert "rank 1: no space left on device" in first
    assert "2 saves in a row failed, exceeding checkpoint.max_failed_saves = 1" in raised
    assert second in raised
    assert not [path for path in saved_in(tmp_path) if step_of(path) != 1]


def die_on_rank_1(root: Path, stage: str) -> None:
    saver = make_saver(root)
    save(saver, 1, ephemeral=False)
    save(saver, 2)
    if dist.get_rank() == 1:
        real = getattr(save_module, stage)

        def die(*args: object, **kwargs: object) -> None:
            if stage == "_copy_parts":
                real(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(save_module, stage, die)
    save(saver, 3, ephemeral=False)


def resume_and_save(root: Path) -> tuple[int, int]:
    """The step that is found, and the one that is found after the next save."""
    found = resume(root)[0]
    save(make_saver(root), 4, ephemeral=False)
    return found, resume(root)[0]


@pytest.mark.parametrize(("stage", "found"), [("write_shards", 2), ("write_part", 2), ("_copy_parts", 3)])
def test_a_rank_that_dies_in_the_background_leaves_older_ones_whole(tmp_path, stage, found):
    with pytest.raises(RankFailure, match="rank 1 ended with code -9"):
        run_ranks(die_on_rank_1, 2, tmp_path, stage)
    assert run_ranks(resume_and_save, 2, tmp_path) == [(found, 4)] * 2
    assert [path.name for path in (tmp_path / "disk-0" / "test").iterdir() if path.name.startswith(".")] == []
    assert sorted(map(step_of, saved_in(tmp_path))) == [1, 4]  # nothing half
