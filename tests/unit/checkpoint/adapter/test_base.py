"""The fingerprint of base weights: every byte counts, is read once; those of earlier versions are understood."""

import logging
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from glmforge.checkpoint.adapter import digests
from glmforge.checkpoint.adapter.base import base_weights, check_base
from glmforge.checkpoint.convert.hf_files import Shards
from glmforge.checkpoint.format.sharded_adapter import BaseWeights
from glmforge.errors import CheckpointError

SAMPLED = "f812564bea01775a800ad97a3ea82676985037d8ad850d796a0feddc5490127a"
"""What version 0.1 took of `write_base`."""

WEIGHTS = {
    "a": torch.arange(1000, dtype=torch.float32).view(50, 20),
    "b": torch.arange(700, dtype=torch.bfloat16),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
}


def write_base(directory: Path) -> Path:
    directory.mkdir()
    save_file(WEIGHTS, directory / "model.safetensors")
    return directory


def flip(directory: Path, tensor: str, offset: int) -> None:
    shards = Shards(directory)
    with shards.file(tensor).open("r+b") as file:
        file.seek(shards.start(tensor) + offset)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The tensors that are read; what is kept lies in a directory of the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read: list[str] = []
    real = digests._hash
    monkeypatch.setattr(digests, "_hash", lambda shards, name: read.append(name) or real(shards, name))
    monkeypatch.setattr(digests, "_SETTLED_S", 0.0)
    return read


@pytest.mark.parametrize(("tensor", "offset"), [("a", 0), ("a", 100), ("a", 3999), ("b", 333), ("scalar", 2)])
def test_one_changed_bit_of_any_tensor_is_another_base(tmp_path: Path, hashed: list[str], tensor: str, offset: int):
    base = write_base(tmp_path / "base")
    before = base_weights(base)
    flip(base, tensor, offset)
    with pytest.raises(
        CheckpointError, match=r"was trained on the weights of .* holds other or changed weights"
    ) as refused:
        check_base(tmp_path / "adapter", before, base_weights(base))
    assert "\n" not in str(refused.value)


def test_files_are_read_once_until_they_change(tmp_path: Path, hashed: list[str]) -> None:
    base = write_base(tmp_path / "base")
    before = base_weights(base)
    assert sorted(hashed) == sorted(WEIGHTS)
    assert base_weights(base) == before
    assert len(hashed) == len(WEIGHTS)
    status = (base / "model.safetensors").stat()
    flip(base, "a", 100)
    os.utime(base / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))  # as 'cp -p' and rsync do
    assert base_weights(base).fingerprint != before.fingerprint
    assert len(hashed) == 2 * len(WEIGHTS)


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, hashed: list[str], monkeypatch) -> None:
    """A second change may get the same time."""
    monkeypatch.setattr(digests, "_SETTLED_S", 1e6)
    base = write_base(tmp_path / "base")
    base_weights(base)
    base_weights(base)
    assert len(hashed) == 2 * len(WEIGHTS)


@pytest.mark.parametrize("kept", ["writable by others", "damaged", "of another file"])
def test_digests_that_cannot_be_trusted_are_not_used(tmp_path: Path, hashed: list[str], kept: str) -> None:
    base = write_base(tmp_path / "base")
    before = base_weights(base)
    (file,) = (tmp_path / "cache" / "glmforge" / "digests").iterdir()
    if kept == "writable by others":
        file.parent.chmod(0o777)
    elif kept == "damaged":
        file.write_text(file.read_text()[:-9])
    else:
        file.write_text(file.read_text().replace(str(base), "/elsewhere"))
    assert base_weights(base) == before
    assert len(hashed) == 2 * len(WEIGHTS)


def test_the_fingerprint_of_an_earlier_version_is_compared_and_said_to_be_less(tmp_path, hashed, caplog) -> None:
    base = write_base(tmp_path / "base")
    earlier = BaseWeights.model_validate({"source": "models/x", "fingerprint": SAMPLED, "num_tensors": 4})
    with caplog.at_level(logging.WARNING):
        check_base(tmp_path / "adapter", earlier, base_weights(base))
    assert "64 bytes at three offsets of each base tensor; those match" in caplog.text
    flip(base, "b", 1399)  # among the last bytes
    with pytest.raises(CheckpointError, match=r"holds other or changed weights"):
        check_base(tmp_path / "adapter", earlier, base_weights(base))
