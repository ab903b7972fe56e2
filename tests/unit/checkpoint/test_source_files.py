"""Files of a source in checkpoints: who gets them back, and what is refused."""

import logging
from pathlib import Path

import pytest
import torch

from glmforge.checkpoint import load_latest, save_checkpoint, verify_checkpoint
from glmforge.checkpoint.adapter.layout import Holding, plan
from glmforge.checkpoint.fit import TensorSpec
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.save import save_local
from glmforge.checkpoint.source_files import read_files, stored_files
from glmforge.errors import CheckpointError
from helpers.checkpoints import assert_holds_step, blank_tensors, make_meta, make_tensors, save_steps


def files_of(num_shares: int) -> dict[str, bytes]:
    """What as many data ranks write together: a buffer each, and the last one a further file."""
    files = dict[str, bytes]()
    for share in range(num_shares):
        mine = {"buffer": bytes([share]) * 3} | ({"more.bin": b"x"} if share == num_shares - 1 else {})
        files |= stored_files(mine, share, num_shares)
    return files


def save(root: Path, step: int, num_shares: int) -> Path:
    return save_checkpoint(root, step, make_tensors(step), make_meta(step), files=files_of(num_shares))


@pytest.mark.parametrize(
    ("saved", "now", "given"),
    [
        (3, 3, [[0], [1], [2]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (2, 4, [[0], [], [1], []]),
        (1, 3, [[0], [], []]),
    ],
)
def test_each_saved_rank_s_files_go_to_one_rank(tmp_path: Path, saved: int, now: int, given: list[list[int]]) -> None:
    path = save(tmp_path, 1, saved)
    found = [read_files(path, share, now) for share in range(now)]
    assert [[files["buffer"][0] for files in of_rank] for of_rank in found] == given
    others = [files for of_rank in found for files in of_rank if "more.bin" in files]
    assert others == [{"buffer": bytes([saved - 1]) * 3, "more.bin": b"x"}]


def test_a_rank_that_had_none_gets_an_empty_mapping_and_a_checkpoint_without_any_gives_none(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, make_tensors(1), make_meta(1), files=stored_files({"a": b"1"}, 1, 2))
    assert [read_files(path, share, 2) for share in range(2)] == [[{}], [{"a": b"1"}]]
    (before,) = save_steps(tmp_path, 2)
    assert read_files(before, 0, 2) == []


def test_on_a_node_s_own_disk_the_parts_name_them(tmp_path: Path) -> None:
    save_local(tmp_path, 1, make_tensors(1), make_meta(1), files=files_of(1))
    (tmp_path / "step-00000001" / "source-00000-of-00001-stray").write_bytes(b"of an earlier save")
    assert read_files(tmp_path / "step-00000001", 0, 1) == [{"buffer": b"\0\0\0", "more.bin": b"x"}]


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"\1\0\0"), Path.unlink], ids=["flipped", "missing"])
def test_a_damaged_file_is_a_damaged_checkpoint(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 1, 2)
    file = save(tmp_path, 2, 2) / "source-00000-of-00002-buffer"
    damage(file)  # type: ignore[operator]
    assert [str(file) in problem for problem in verify_checkpoint(file.parent)] == [True]
    tensors = blank_tensors()
    with caplog.at_level(logging.WARNING):
        assert load_latest(tmp_path, tensors)[0].name == "step-00000001"  # type: ignore[index]
    assert str(file) in caplog.text
    assert_holds_step(tensors, 1)


@pytest.mark.parametrize("name", ["../meta.json", "", ".hidden", "a b", "x" * 101])
def test_a_name_that_is_no_file_s(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"state_files of the source: .*is not a valid name"):
        stored_files({name: b""}, 0, 1)


def test_a_rank_that_holds_no_slice_of_the_adapters_writes_its_files() -> None:
    specs, slices = {"model.a": TensorSpec((2,), torch.float32)}, {"model.a": Box((0,), (2,))}
    made = plan([Holding(("disk",), specs, slices, True), Holding(("disk",), specs, {}, True)], 1, "session")
    assert (made.copies, made.slices) == (((0, 1),), {0: slices, 1: {}})
