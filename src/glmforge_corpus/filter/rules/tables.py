"""A hash set over scratch memory, for compiled loops that fill one per document.

Keys are hashes already, so that their low bits choose the slot; 0 is an empty slot and stands for a key 0 as 1.
"""

from typing import Any

import numpy as np

from glmforge.data.compiled import compiled


@compiled(inline="always")
def table_size(num_keys: int) -> int:
    """Slots for so many keys: a power of two, at most half full."""
    size = 16
    while size < 2 * num_keys:
        size *= 2
    return size


@compiled(inline="always")
def find_slot(keys: Any, size: int, key: np.uint64) -> Any:
    """The slot where `key` is or belongs, in the first `size` slots of `keys`."""
    mask = np.uint64(size - 1)
    slot = key & mask
    while keys[slot] != 0 and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@compiled(inline="always")
def insert(keys: Any, size: int, key: np.uint64) -> Any:
    """Put `key` into the table; false if it was there."""
    key = max(key, np.uint64(1))
    slot = find_slot(keys, size, key)
    is_new = keys[slot] == 0
    keys[slot] = key
    return is_new
