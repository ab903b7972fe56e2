"""Many names of hosts in few words, as hostfiles and Slurm write them: node[001-128]."""

from collections.abc import Iterable


def fold_hosts(names: Iterable[str]) -> str:
    """The names, sorted, those of a series as ranges. `parse_hosts` undoes it."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
