"""Faults that are planted on a node, and the checks that must notice each of them: those, and no others.

A list of `PlantedFault` serves for any kind of node: a directory that stands for one, or a host in a namespace.
`plant` is given the node and mends it again when the `with` block ends:

    with fault.plant(node):
        assert not_passed(node) == fault.checks
    assert not_passed(node) == set()
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

Node = TypeVar("Node")


@dataclass(frozen=True)
class PlantedFault(Generic[Node]):
    """One thing that is wrong with a node.

    Attributes:
        name: in a few words: "a GPU is missing".
        plant: breaks the node, and mends it when the context ends.
        checks: names of the checks that then fail or warn.
    """

    name: str
    plant: Callable[[Node], AbstractContextManager[None]]
    checks: frozenset[str]

    def __str__(self) -> str:
        return self.name
