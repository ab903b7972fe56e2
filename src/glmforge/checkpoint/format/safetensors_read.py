"""Reading slices of tensors from a safetensors file, without mapping the file into memory.

Positioned reads of a few mebibytes are what shared storage serves best; a mapping asks it for pages, one fault after
the other, counts as this process's memory, and ends the process without a word (SIGBUS) when the storage fails or the
file was cut off. Reads release the interpreter's lock, so several threads read at once.

A slice that is one stretch of the file is read as it is, in blocks. One that is many stretches is read stretch by
stretch where they are long; where they are short, as of a matrix that tp cuts by columns, rows are read whole and what
lies between is dropped.
"""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from glmforge.checkpoint.format.boxes import Box
from glmforge.checkpoint.format.safetensors_header import StoredTensor
from glmforge.errors import CheckpointError
from glmforge.files import shown

BLOCK_BYTES = 4 << 20
"""Most bytes that one block of a slice takes to read."""

_SHORT_BYTES = 64 << 10
"""Stretches that are shorter are read together with what lies between them."""


class TensorFile:
    """An open file of tensors; several threads may read at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise _unreadable(path, error) from error

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, stored: StoredTensor, index: Sequence[slice], buffer: Tensor | None = None) -> Tensor:
        """The elements `index` (start and stop of every dim) of a tensor, of its stored type.

        What is read, and kept as long as the result, is all from the first element to the last: in `buffer`, bytes with
        room for that (`BLOCK_BYTES` if `index` is one of `cut`), or in memory of its own. Raises `CheckpointError` if
        the file cannot be read or has become shorter.
        """
        sizes, strides = [part.stop - part.start for part in index], _strides(stored.shape)
        if 0 in sizes:
            return torch.empty(sizes, dtype=stored.dtype)
        first = sum(part.start * stride for part, stride in zip(index, strides, strict=True))
        num_bytes = _span(sizes, strides) * stored.dtype.itemsize
        stretch = torch.empty(num_bytes, dtype=torch.uint8) if buffer is None else buffer[:num_bytes]
        self._fill(stretch, stored.start + first * stored.dtype.itemsize)
        return stretch.view(stored.dtype).as_strided(sizes, strides)

    def _fill(self, stretch: Tensor, place: int) -> None:
        """With the bytes of the file from `place` on; one call reads 2 GiB at most."""
        left = stretch.numpy().data
        while left:
            try:
                num_read = os.preadv(self._descriptor, [left], place)
            except OSError as error:
                raise _unreadable(self._path, error) from error
            if num_read == 0:
                raise CheckpointError(
                    f"{shown(self._path)}: was truncated while it was read; load it when writing has finished"
                )
            left, place = left[num_read:], place + num_read


def cut(box: Box, within: Box, itemsize: int) -> Iterator[Box]:
    """Cut `box`, a part of the tensor `within`, whose elements have `itemsize` bytes, into blocks to read at once."""
    strides = _strides(within.sizes)
    span, stretch = _span(box.sizes, strides) * itemsize, _stretch(box.sizes, within.sizes) * itemsize
    has_long_stretches = stretch >= _SHORT_BYTES and stretch < box.num_elements * itemsize
    if span <= BLOCK_BYTES and not has_long_stretches:
        yield box
        return
    dim = next(dim for dim, size in enumerate(box.sizes) if size > 1)
    step = 1 if has_long_stretches else max(1, BLOCK_BYTES // (strides[dim] * itemsize))
    for first in range(0, box.sizes[dim], step):
        offsets, sizes = list(box.offsets), list(box.sizes)
        offsets[dim] += first
        sizes[dim] = min(step, sizes[dim] - first)
        yield from cut(Box(tuple(offsets), tuple(sizes)), within, itemsize)


def _strides(shape: Sequence[int]) -> list[int]:
    """In elements, of a tensor that lies row by row."""
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last of a slice that has some."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _stretch(sizes: Sequence[int], shape: Sequence[int]) -> int:
    """Elements of a slice that lie side by side: its last dims, as far as they are whole, and the one before them."""
    num_elements = 1
    for size, whole in zip(reversed(sizes), reversed(shape), strict=True):
        num_elements *= size
        if size < whole:
            break
    return num_elements


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{shown(path)}: cannot be read: {error.strerror or error}")
