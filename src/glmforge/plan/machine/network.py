"""Networks between nodes: what an adapter can carry, each way, and how long a message takes at least.

Bandwidths are those of the links. What a collective reaches of them is a matter of time (`glmforge.plan.time`).
"""

import re
from typing import NamedTuple

from glmforge.errors import ConfigError

GIGABIT = 1e9 / 8


class Network(NamedTuple):
    """The links of a node to the others.

    Attributes:
        bandwidth: bytes per second each way, of a GPU's own adapter, or of the node's only one if `is_shared`.
        latency: seconds of an empty message.
        is_shared: whether the GPUs of a node share one adapter, as over TCP.
    """

    name: str
    bandwidth: float
    latency: float
    is_shared: bool
    source: str

    def bandwidth_per_rank(self, ranks_per_node: int) -> float:
        """Bytes per second each way for each of a node's ranks when all of them send."""
        return self.bandwidth / ranks_per_node if self.is_shared else self.bandwidth


_FAMILIES = {
    # Latency of an empty message: about 2 us by InfiniBand, 5 us by RoCE, 50 us through the kernel's TCP stack.
    "ib": (2e-6, False, "an InfiniBand adapter for each GPU"),
    "roce": (5e-6, False, "a RoCE adapter for each GPU"),
    "tcp": (50e-6, True, "one adapter for each node, TCP"),
}


def find_network(name: str) -> Network:
    """The network that a name such as "ib400", "roce200" or "tcp30" stands for: its kind and Gb/s.

    Raises `ConfigError` for any other name.
    """
    match = re.fullmatch(r"(ib|roce|tcp)(\d+(?:\.\d+)?)", name)
    if match is None or not float(match[2]) > 0:
        raise ConfigError(
            f"--network: unknown network '{name}'; use ib, roce (Gb/s per GPU) or tcp (Gb/s per node) with a number, "
            "such as ib400 or tcp30"
        )
    latency, is_shared, source = _FAMILIES[match[1]]
    return Network(name, float(match[2]) * GIGABIT, latency, is_shared, source)
