"""Which source a sample comes from, and which of the source's samples it is: in closed form.

Sources are to be drawn in proportion to their weights, in every stretch of the stream and not just on
average, and sample i must be found without replaying samples 0 ... i-1. For two sources a Sturmian sequence
does both: sample i comes from the first, of weight w, iff floor((i+1) w) > floor(i w), and it is that
source's sample number floor(i w). For more, the sources hang on a binary tree and each node makes that choice
between its two sides, passing on the number of the sample within the side.

Each choice adds less than one to the difference between a count and its due, and multiplies what it inherits
by its own weight. In a Huffman tree a node below another node has at most 2/3 of its parent's weight, so the
differences form a geometric series: after any number n of samples, every source has been drawn n * weight
times to within four, however many sources there are. Weights are rational numbers, so there is no rounding to
drift; if they are whole numbers that add up to n, the first n samples are drawn from each source exactly so often.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from glmforge.errors import DataError


@dataclass(frozen=True)
class _Node:
    """Sends the share `numerator / denominator` of its samples left."""

    numerator: int
    denominator: int
    left: "_Node | int"
    right: "_Node | int"


_Path = tuple[tuple[_Node, bool], ...]
"""Nodes on the way to a source, and whether it goes left at each."""


class Mixture:
    """Assigns the samples 0, 1, 2, ... to sources by weight.

    Args:
        weights: positive numbers, one per source; only their ratios matter.

    Raises:
        DataError: there are no weights, or one is not positive and finite.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        for index, weight in enumerate(weights):
            if not 0 < weight < float("inf"):
                raise DataError(f"weight {weight} of source {index}: must be positive; remove the source instead")
        if not weights:
            raise DataError("mixture: no sources; add at least one")
        self._root = _huffman_tree([Fraction(weight) for weight in weights])
        self._paths = dict(_paths(self._root))

    def locate(self, sample: int) -> tuple[int, int]:
        """(source, number of the sample within it); each source's samples are 0, 1, 2, ... in turn."""
        node, index = self._root, sample
        while isinstance(node, _Node):
            before = index * node.numerator // node.denominator
            after = (index + 1) * node.numerator // node.denominator
            node, index = (node.left, before) if after > before else (node.right, index - before)
        return node, index

    def count(self, samples: int, source: int) -> int:
        """How many of the samples 0 ... samples - 1 come from `source`; its next sample has this number."""
        for node, is_left in self._paths[source]:
            before = samples * node.numerator // node.denominator
            samples = before if is_left else samples - before
        return samples


def _huffman_tree(weights: list[Fraction]) -> _Node | int:
    """Join the two lightest until one is left; ties go by position, so the tree is the same everywhere."""
    heap: list[tuple[Fraction, int, _Node | int]] = [(weight, i, i) for i, weight in enumerate(weights)]
    heapq.heapify(heap)
    for number in range(len(weights), 2 * len(weights) - 1):
        light, _, right = heapq.heappop(heap)
        heavy, _, left = heapq.heappop(heap)
        share = heavy / (heavy + light)
        node = _Node(share.numerator, share.denominator, left, right)
        heapq.heappush(heap, (heavy + light, number, node))
    return heap[0][2]


def _paths(root: _Node | int, path: _Path = ()) -> Iterator[tuple[int, _Path]]:
    """Each source with the nodes above it, from the root down."""
    if isinstance(root, _Node):
        yield from _paths(root.left, (*path, (root, True)))
        yield from _paths(root.right, (*path, (root, False)))
    else:
        yield root, path
