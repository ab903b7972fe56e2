"""How slices are cut into blocks, and that reading them gives the slices."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from glmforge.checkpoint.format import safetensors_read
from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.safetensors_header import read_header
from glmforge.checkpoint.format.safetensors_read import TensorFile, cut

BLOCK_BYTES, SHORT_BYTES = 256, 40


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_read, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(safetensors_read, "_SHORT_BYTES", SHORT_BYTES)


@pytest.mark.parametrize("seed", range(40))
def test_blocks_are_the_slice_and_small(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.integers(1, most)) for most in (9, 20, 30)[seed % 4 :])
    sizes = tuple(int(rng.integers(1, size + 1)) for size in shape)
    offsets = tuple(int(rng.integers(0, whole - size + 1)) for whole, size in zip(shape, sizes, strict=True))
    tensor = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    save_file({"before": torch.zeros(3), "x": tensor}, tmp_path / "f")
    stored = read_header(tmp_path / "f")["x"]
    box, found, num_read = Box(offsets, sizes), torch.full(shape, -1.0), 0
    file, buffer = TensorFile(tmp_path / "f"), torch.empty(BLOCK_BYTES, dtype=torch.uint8)
    for block in cut(box, Box.whole(shape), 4):
        part = file.read(stored, block.within(Box.whole(shape)))
        place = block.within(Box.whole(shape))
        assert torch.equal(file.read(stored, place, buffer), part)
        assert (found[place] == -1).all()
        found[place] = part
        assert part.untyped_storage().nbytes() <= BLOCK_BYTES
        num_read += part.untyped_storage().nbytes()
    file.close()
    expected = torch.full(shape, -1.0)
    expected[box.within(Box.whole(shape))] = tensor[box.within(Box.whole(shape))]
    assert torch.equal(found, expected)
    if shape and sizes[-1] * 4 >= SHORT_BYTES:
        assert num_read == 4 * box.num_elements
