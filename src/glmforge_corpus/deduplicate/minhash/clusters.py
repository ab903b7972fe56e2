"""Pairs -> clusters -> which copy stays."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glmforge.data.compiled import compiled
from glmforge_corpus.deduplicate.places import Places


class Clusters(NamedTuple):
    """Texts that are joined by pairs, directly or through others.

    Attributes:
        members: `[m]` places, sorted; a text without a partner is not among them.
        cluster: `[m]` each member's cluster, named by the index in `members` of its first text.
    """

    members: Places
    cluster: NDArray[np.int64]


def join(earlier: Places, later: Places) -> Clusters:
    """The connected components of pairs, by union-find; memory grows with the texts that have a partner."""
    members = np.unique(np.concatenate([earlier, later]))
    a, b = np.searchsorted(members, earlier), np.searchsorted(members, later)
    return Clusters(members, _components(a, b, len(members)))


@compiled
def _components(a: Any, b: Any, count: int) -> Any:
    """`[count]`: the least index of each node's component."""
    parent = np.arange(count)
    for edge in range(len(a)):
        x, y = _root(parent, a[edge]), _root(parent, b[edge])
        parent[max(x, y)] = min(x, y)
    for node in range(count):
        parent[node] = _root(parent, node)
    return parent


@compiled
def _root(parent: Any, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]  # halve the path
        node = parent[node]
    return node


def removed(clusters: Clusters, weights: NDArray[np.float64], num_old: int) -> NDArray[np.bool_]:
    """`[m]`: which members go. Of each cluster the heaviest stays, of equals the first.

    Args:
        clusters: what `join` made.
        weights: `[m]` of each member; NaN counts as least.
        num_old: shards below this number belong to an index: their texts are in the corpus already, so that nothing
            new of their clusters stays, whatever it weighs.
    """
    weights = np.where(np.isnan(weights), -np.inf, weights)
    is_old = clusters.members < np.uint64(num_old << 32)
    order = np.lexsort((clusters.members, -weights, ~is_old, clusters.cluster))
    ordered = clusters.cluster[order]
    best = np.ones(len(order), np.bool_)
    best[1:] = ordered[1:] != ordered[:-1]
    gone = np.ones(len(order), np.bool_)
    gone[order[best]] = False
    return gone & ~is_old
