"""What is known of a running development cluster: a file that each command reads, and the next finds changed."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmforge.errors import HostError
from glmforge.files import read_text, shown
from glmforge.runtime.process import ProcessIdentity, is_alive
from glmforge_ops.dev.options import HEAD, DevOptions, Mode
from glmforge_ops.dev.places import Places

HostState = Literal["up", "cut", "failed"]


class HostRecord(BaseModel):
    """One host.

    Attributes:
        address: by which the others, and with namespaces this machine, reach it.
        keeper: its first process; None if it has failed.
        launcher: the process that waits for the keeper, and ends with it.
        ports: daemon -> where it listens, if not at its usual port.
        cut: whether its link is.
        rate: of its link, as `tc` writes it.
        clock_offset_s: what its ssh server's commands take to be the time, less the time.
    """

    model_config = ConfigDict(extra="forbid")

    address: str
    keeper: ProcessIdentity | None = None
    launcher: ProcessIdentity | None = None
    ports: dict[str, int] = {}
    cut: bool = False
    rate: str | None = None
    clock_offset_s: float = 0.0

    @property
    def state(self) -> HostState:
        if self.keeper is None or not is_alive(self.keeper):
            return "failed"
        return "cut" if self.cut else "up"


class ClusterState(BaseModel):
    """A whole cluster.

    Attributes:
        ssh: whether its hosts have ssh servers.
        why_plain: why it has no namespaces; empty if it has.
        uplink: the interface by which this machine reaches it, if there is one.
    """

    model_config = ConfigDict(extra="forbid")

    options: DevOptions
    mode: Mode
    ssh: bool
    hosts: dict[str, HostRecord]
    why_plain: str = ""
    uplink: str | None = None

    @property
    def is_running(self) -> bool:
        return self.hosts[HEAD].state != "failed"

    def write(self, places: Places) -> None:
        partial = places / "cluster.json.partial"
        partial.write_text(self.model_dump_json(indent=1) + "\n")
        partial.replace(places.state)


def read_state(places: Places) -> ClusterState | None:
    """None if there is no cluster. Raises `HostError` if the file cannot be one's."""
    if not places.state.exists():
        return None
    try:
        state = ClusterState.model_validate_json(read_text(places.state, error=HostError, max_bytes=1 << 22))
    except ValidationError as error:
        raise HostError(
            f"{shown(places.state)}: is not the state of a development cluster ({error.error_count()} errors); "
            f"remove {places.directory} when nothing of it runs"
        ) from None
    if set(state.hosts) != {HEAD, *state.options.node_names}:
        raise HostError(f"{shown(places.state)}: names other hosts than the cluster has; remove {places.directory}")
    return state
