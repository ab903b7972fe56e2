"""Texts with passages cut out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled


def cut(
    text_bytes: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    borders: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts without some passages; a text that loses its end loses the spaces before it, too.

    Args:
        text_bytes: UTF-8 of all texts.
        offsets: `[n + 1]` borders of texts in it.
        borders: `[n + 1]` borders of texts among the passages.
        starts, stops: of each passage in `text_bytes`, in order, on borders of characters and without overlap.

    Returns:
        bytes and offsets of the texts that remain.
    """
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    _cut(text_bytes, offsets, borders, starts, stops, out, out_offsets)
    return out[: out_offsets[-1]], out_offsets


@compiled
def _cut(text: Any, offsets: Any, borders: Any, starts: Any, stops: Any, out: Any, out_offsets: Any) -> None:
    size = 0
    for row in range(len(offsets) - 1):
        place = offsets[row]
        for k in range(borders[row], borders[row + 1]):
            length = starts[k] - place
            out[size : size + length] = text[place : starts[k]]
            size, place = size + length, stops[k]
        length = offsets[row + 1] - place
        out[size : size + length] = text[place : offsets[row + 1]]
        size += length
        if length == 0 and borders[row + 1] > borders[row]:
            while size > out_offsets[row] and (out[size - 1] == 32 or 9 <= out[size - 1] <= 13):
                size -= 1
        out_offsets[row + 1] = size
