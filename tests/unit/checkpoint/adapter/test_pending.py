"""Ranks that write one step without a word between them: what is there when any of them dies at any moment."""

import os
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import StoredTensors, latest_checkpoint, list_checkpoints, verify_checkpoint
from glmforge.checkpoint.adapter.layout import Holding, WritePlan, plan
from glmforge.checkpoint.adapter.write import save_rank
from glmforge.checkpoint.fit import TensorSpec
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.sharded_adapter import read_description
from glmforge.checkpoint.format.store import checkpoint_path, step_of
from glmforge.checkpoint.node_local import pending
from glmforge.checkpoint.node_local.pending import (
    clear_up,
    is_pending,
    pending_path,
    publish_if_whole,
    said_to_have_failed,
)
from glmforge.errors import CheckpointError
from helpers.adapters import make_info
from helpers.checkpoints import die_before_change, make_meta

SPECS = {"model.a": TensorSpec((4, 2), torch.float32), "optim.exp_avg.a": TensorSpec((4, 2), torch.float32)}


def plan_of(rank: int, session: str = "ab", num_ranks: int = 2) -> WritePlan:
    """Of ranks that hold two rows each."""
    slices = [{name: Box((2 * r, 0), (2, 2)) for name in SPECS} for r in range(num_ranks)]
    return plan([Holding(("shared",), SPECS, own) for own in slices], rank, session)


def value(step: int, rank: int) -> float:
    return 100.0 * step + rank


def save(root: Path, step: int, rank: int, number: int = 1, session: str = "ab") -> bool:
    """Whether this rank published it."""
    own = plan_of(rank, session)
    save = f"{session}-{number:08d}"
    tensors = {name: torch.full((2, 2), value(step, rank)) for name in SPECS}
    save_rank(pending_path(root, step, save), own, tensors, make_meta(step), make_info(), save=save)
    return publish_if_whole(root, step, save)


@pytest.fixture(autouse=True)
def parts_of_plain_tensors(monkeypatch):
    """These tensors stand for a rank's two rows."""
    monkeypatch.setattr("glmforge.checkpoint.adapter.write.local_chunk", lambda tensor: (tensor, _offsets(tensor)))


def _offsets(tensor: torch.Tensor) -> tuple[int, int]:
    return (2 * int(tensor[0, 0] % 100), 0)


def found(root: Path) -> int | None:
    """The step that a start of the run finds, after having looked at all of its contents."""
    clear_up(root)
    assert [path.name for path in root.glob(".step-*")] == []
    path = latest_checkpoint(root)
    if path is None:
        return None
    assert verify_checkpoint(path) == []
    stored, step = StoredTensors(path), step_of(path)
    assert stored["model.a"].tolist() == [[value(step, rank)] * 2 for rank in (0, 0, 1, 1)]
    assert read_description(path).step == step
    return step


@pytest.mark.parametrize("look", [lambda at, save: publish_if_whole(at, 1, save), lambda at, save: failures(at, save)])
def test_another_rank_may_publish_while_this_one_looks(tmp_path, monkeypatch, look):
    """Between finding the directory of the save and opening it, the last rank has renamed it."""
    save(tmp_path, 1, 1)
    hidden, listed = pending_path(tmp_path, 1, "ab-00000001"), os.scandir

    def publish_first(path):
        if Path(path) == hidden and hidden.exists():
            monkeypatch.setattr(os, "scandir", listed)
            assert save(tmp_path, 1, 0)
        return listed(path)

    monkeypatch.setattr(os, "scandir", publish_first)
    assert not look(tmp_path, "ab-00000001")
    assert os.scandir is listed  # it did look
    assert found(tmp_path) == 1


def failures(root: Path, save: str) -> list[str]:
    return said_to_have_failed(pending_path(root, 1, save))


def test_the_last_one_publishes(tmp_path):
    assert not save(tmp_path, 1, 1)
    assert list_checkpoints(tmp_path) == []
    assert save(tmp_path, 1, 0)
    assert found(tmp_path) == 1
    assert sorted(path.name for path in checkpoint_path(tmp_path, 1).iterdir()) == [
        *("adapter_config.json", "adapter_model.rank0.safetensors", "adapter_model.rank1.safetensors", "manifest.json"),
        *("meta.json", "metadata.json", "training_state.rank0.safetensors", "training_state.rank1.safetensors"),
    ]


@pytest.mark.parametrize("dying", [0, 1], ids=["first", "last"])
def test_a_rank_may_die_at_any_moment(tmp_path, dying):
    """Step 1 is there. Of step 2 one rank has written, or will, and the other one dies before its n-th change."""
    steps = []
    for n in range(100):
        root = tmp_path / str(n)
        save(root, 1, 0)
        save(root, 1, 1)
        if dying == 1:
            save(root, 2, 0, 2)
        child = os.fork()
        if child == 0:
            die_before_change(n, root)
            save(root, 2, dying, 2)
            os._exit(0)
        survived = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        if dying == 0:
            save(root, 2, 1, 2)
        steps.append(found(root))
        if survived:
            break
    assert survived
    assert steps == sorted(steps)  # from some moment on the new one is there, and stays
    assert steps[0] == 1
    assert steps[-1] == 2


def test_a_death_between_whole_and_published_loses_nothing(tmp_path):
    save(tmp_path, 1, 0)
    child = os.fork()
    if child == 0:
        pending._publish = lambda whole, final: os._exit(0)
        save(tmp_path, 1, 1)
    os.waitpid(child, 0)
    assert list_checkpoints(tmp_path) == []
    assert is_pending(tmp_path, 1, "ab-00000001")
    assert found(tmp_path) == 1


def test_parts_of_two_starts_are_no_checkpoint(tmp_path):
    """A node that comes back with another session must not complete the old one's step, wherever its files lie."""
    save(tmp_path, 5, 0, session="ab")
    save(tmp_path, 5, 1, session="cd")
    assert found(tmp_path) is None


def test_later_saves_clear_up_what_was_not_finished(tmp_path):
    save(tmp_path, 1, 0, 1)  # rank 1 had no room for it
    save(tmp_path, 2, 0, 2)
    save(tmp_path, 2, 1, 2)
    save(tmp_path, 3, 0, 3)  # rank 1 is at it
    clear_up(tmp_path, before="ab-00000002")
    assert [path.name for path in tmp_path.glob(".step-*")] == [".step-00000003.pending-ab-00000003"]
    assert save(tmp_path, 3, 1, 3)


def test_who_cannot_write_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1, 0)

    def full(file, tensors):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr("glmforge.checkpoint.adapter.write.write_shard", full)
    with pytest.raises(CheckpointError, match=r"step 1 was not saved by rank 1: no space left .*; free space") as error:
        save(tmp_path, 1, 1)
    directory = pending_path(tmp_path, 1, "ab-00000001")
    assert list(directory.glob("*rank1*")) == []
    assert said_to_have_failed(directory) == [str(error.value).partition("rank 1: ")[2]]
    assert found(tmp_path) is None


def test_a_step_saved_again_takes_the_place_of_the_old_one(tmp_path):
    for number in (1, 2):
        save(tmp_path, 4, 0, number)
        save(tmp_path, 4, 1, number)
    assert found(tmp_path) == 4
    assert len(list_checkpoints(tmp_path)) == 1
