"""TensorBoard's files, read back by TensorBoard."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.errors import GlmforgeError
from glmforge.observe.record_files import RunFileError
from glmforge.observe.tensorboard import TensorBoardFile


def _scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def test_tensorboard_takes_numbers_under_the_tables_tags(tmp_path: Path) -> None:
    with TensorBoardFile(tmp_path) as file:
        file.write({"step": 1, "phase": "general", "loss": 2.5, "expert_load": [[1.0]]})
        file.write({"step": 1, "source": "code", "bits_per_byte": 1.25})
    assert _scalars(tmp_path, "loss/loss") == [(1, 2.5)]
    assert _scalars(tmp_path, "evaluation/bits_per_byte/code") == [(1, 1.25)]


def test_tensorboard_takes_a_number_per_source_and_now_and_then_one_per_layer(tmp_path: Path) -> None:
    with TensorBoardFile(tmp_path) as file:
        for step in (1, 2):
            record = {"step": step, "source_loss": {"web": 2.0, "code": 1.0}, "layer_max_violation": [0.25, 0.5]}
            file.write(record | ({"expert_load": [[0.5, 0.5]]} if step == 2 else {}))
        file.write({"step": 2, "source": "prose", "mtp_acceptance_by_depth": [0.5, 0.25]})
    assert _scalars(tmp_path, "sources/source_loss/code") == [(1, 1.0), (2, 1.0)]
    assert _scalars(tmp_path, "layers/layer_max_violation/01") == [(2, 0.5)]
    assert _scalars(tmp_path, "evaluation/mtp_acceptance_by_depth/prose/01") == [(2, 0.25)]


_TENSORBOARD_WRITER = """
import os, signal, sys
from glmforge.observe.tensorboard import TensorBoardFile
file = TensorBoardFile(sys.argv[1])
for step in range(1, 5):
    file.write({"step": step, "loss": float(step)})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tensorboard_survives_a_kill_and_hides_what_is_trained_again(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _TENSORBOARD_WRITER, str(tmp_path)], check=False)
    assert _scalars(tmp_path, "loss/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    (killed,) = tmp_path.iterdir()
    # TensorBoard reads files by name, which holds the second of creation: let the kill be in an earlier one.
    killed.rename(tmp_path / "events.out.tfevents.1000000000.host.1.0")
    with TensorBoardFile(tmp_path, resume_step=2) as resumed:
        resumed.write({"step": 3, "loss": 30.0})
    assert _scalars(tmp_path, "loss/loss") == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_tensorboards_directory_that_cannot_be_made_is_an_error_naming_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFileError, match=r"file/tensorboard: cannot be written \(Not a directory\)"):
        TensorBoardFile(tmp_path / "file" / "tensorboard")


@pytest.mark.parametrize("package", ["tensorboard", "crc32c"])
def test_without_a_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(GlmforgeError, match=r"pip install 'glmforge\[observe\]'"):
        TensorBoardFile(tmp_path)


def test_a_record_that_finds_no_room_leaves_the_file_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes half of an event, then nothing."""
    with TensorBoardFile(tmp_path) as file:
        file.write({"step": 1, "loss": 1.0})
        disk, room = file._file, [20]

        class Filling:
            fileno = disk.fileno

            def write(self, content: bytes) -> int:
                if not room:
                    raise OSError(28, os.strerror(28))
                return disk.write(content[: room.pop()])

        file._file = Filling()  # type: ignore[assignment]
        with pytest.raises(RunFileError, match="No space left"):
            file.write({"step": 2, "loss": 2.0})
        file._file = disk
        file.write({"step": 3, "loss": 3.0})
    assert _scalars(tmp_path, "loss/loss") == [(1, 1.0), (3, 3.0)]
