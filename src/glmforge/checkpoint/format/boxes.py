"""Rectangles of a tensor: what a rank holds of it, what a file holds of it, and what the two have in common."""

import math
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Box:
    """The elements from `offsets` on, `sizes` many in each dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Self:
        """All of a tensor of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def num_elements(self) -> int:
        return math.prod(self.sizes)

    def overlap(self, other: "Box") -> "Box | None":
        """What both contain; None if that is nothing."""
        starts, sizes = [], []
        for a, a_size, b, b_size in zip(self.offsets, self.sizes, other.offsets, other.sizes, strict=True):
            start, stop = max(a, b), min(a + a_size, b + b_size)
            if start >= stop:  # most boxes differ in the expert, the first dim: this is asked millions of times
                return None
            starts.append(start)
            sizes.append(stop - start)
        return Box(tuple(starts), tuple(sizes))

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """The index of this box in a tensor that holds just `outer`."""
        return tuple(
            slice(offset - start, offset - start + size)
            for offset, size, start in zip(self.offsets, self.sizes, outer.offsets, strict=True)
        )
