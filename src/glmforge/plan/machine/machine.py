"""The machine that a job runs on: a kind of GPU, this many of them to a node, and a network between nodes."""

from dataclasses import dataclass
from typing import NamedTuple

from glmforge.errors import ConfigError
from glmforge.files import shown
from glmforge.plan.machine.description import is_file_name, read_accelerator, read_network
from glmforge.plan.machine.hardware import ACCELERATORS, Accelerator, accelerator_named
from glmforge.plan.machine.measured import CollectivePoint
from glmforge.plan.machine.network import Network, find_network
from glmforge.plan.machine.provenance import Provenance

PCIE_BANDWIDTH = 25e9
"""Bytes per second each way over PCIe 4.0 x16, of 32e9; servers since Hopper have 5.0 and twice that."""
HOST_MEMORY_BANDWIDTH = 400e9
"""Bytes per second, read and written, of a host with two processors of eight channels, of some 600e9."""


class Cores(NamedTuple):
    """Processor cores that all ranks share, as on a machine without GPUs; see `glmforge.plan.time.shared_cores`.

    Attributes:
        number: how many there are.
        slowdown: how many times as long a rank's work takes while all cores are busy as on an idle machine.
        operation_seconds: of the host for each pass of an operation, beside its work.
        sharding_seconds: of the host each time that FSDP gathers or reduces a layer, beside the collective.
        replication_seconds: the same where there are replicas only, and nothing is to be gathered.
        message_seconds: of the host for every other collective, beside it.
    """

    number: int
    slowdown: float = 1.0
    operation_seconds: float = 0.0
    sharding_seconds: float = 0.0
    replication_seconds: float = 0.0
    message_seconds: float = 0.0


@dataclass(frozen=True)
class Machine:
    """What a planner has to know of a cluster. Ranks that follow one another are in one node as long as it has room.

    Attributes:
        collectives: measured ones, which take the place of what the links' figures give.
        cores: what the ranks share if they are no GPUs.
    """

    accelerator: Accelerator
    network: Network
    ranks_per_node: int = 8
    collectives: tuple[CollectivePoint, ...] = ()
    cores: Cores | None = None

    @property
    def link_bandwidth(self) -> float:
        """Bytes per second each way between two nodes, for each rank when all of them send."""
        return self.network.bandwidth_per_rank(self.ranks_per_node)

    @property
    def host_link(self) -> float:
        """Bytes per second each way between a device and its host."""
        is_recent = self.accelerator.fp8_flops is not None and self.accelerator.nvlink_bandwidth is not None
        return 2 * PCIE_BANDWIDTH if is_recent else PCIE_BANDWIDTH

    @property
    def host_bandwidth(self) -> float:
        """Bytes per second of the host's memory, read and written, for each rank when all of a node use it."""
        return HOST_MEMORY_BANDWIDTH / self.ranks_per_node

    @property
    def compute_provenance(self) -> Provenance:
        """Of what the device computes: shapes other than the measured ones are calibrated at best."""
        return Provenance.CALIBRATED if self.accelerator.points else Provenance.ASSUMED

    @property
    def link_provenance(self) -> Provenance:
        """Of what is sent."""
        return Provenance.CALIBRATED if self.collectives else Provenance.ASSUMED


def find_machine(gpu: str, network: str = "ib400", ranks_per_node: int = 8) -> Machine:
    """A machine by the names of its parts, or by the YAML files that describe them.

    Raises `ConfigError` for what is not known, saying what is and how to describe one's own.
    """
    link = read_network(network) if is_file_name(network) else find_network(network)
    if is_file_name(gpu):
        return Machine(read_accelerator(gpu), link, ranks_per_node)
    accelerator = accelerator_named(gpu)
    if accelerator is None:
        known = ", ".join(row.name for row in ACCELERATORS)
        raise ConfigError(
            f"--gpu: '{shown(gpu)}' is unknown; choose one of {known}, or pass a .yaml file with name, bf16_tflops, "
            "memory_gb and memory_gb_per_s"
        )
    return Machine(accelerator, link, ranks_per_node)
