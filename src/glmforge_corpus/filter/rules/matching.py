"""Finds the texts of one batch among those of another."""

from typing import Any

import numpy as np

from glmforge.data.bytes_kernels import equal_bytes
from glmforge.data.compiled import compiled


@compiled
def match_rows(text: Any, offsets: Any, part: Any, part_offsets: Any) -> Any:
    """Rows of `text` that are the texts of `part`, in order; shorter than `part` at the first that is not there."""
    num_texts, num_parts = len(offsets) - 1, len(part_offsets) - 1
    rows = np.empty(num_parts, np.int64)
    row = 0
    for index in range(num_parts):
        size = part_offsets[index + 1] - part_offsets[index]
        while row < num_texts and (
            offsets[row + 1] - offsets[row] != size
            or not equal_bytes(text, offsets[row], part, part_offsets[index], size)
        ):
            row += 1
        if row == num_texts:
            return rows[:index]
        rows[index] = row
        row += 1
    return rows
