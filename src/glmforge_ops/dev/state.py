"""State of a running development cluster: a file that every command reads, and that the ones that change it write."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from glmforge.errors import HostError
from glmforge.files import read_text, shown
from glmforge.runtime.process import ProcessIdentity, is_alive
from glmforge_ops.dev.options import HEAD, DevOptions, Mode
from glmforge_ops.dev.places import Places

_FILE = "cluster.json"

HostState = Literal["up", "cut", "failed"]


class HostRecord(BaseModel):
    """One host: its address, its first process, and ports of daemons that are not the usual ones."""

    model_config = ConfigDict(extra="forbid")

    address: str = "127.0.0.1"
    keeper: ProcessIdentity | None = None
    ports: dict[str, int] = {}
    cut: bool = False
    rate: str | None = None

    @property
    def state(self) -> HostState:
        if self.keeper is None or not is_alive(self.keeper):
            return "failed"
        return "cut" if self.cut else "up"


class ClusterState(BaseModel):
    """A whole cluster; `uplink` is the interface by which this machine reaches its hosts."""

    model_config = ConfigDict(extra="forbid")

    options: DevOptions
    mode: Mode = "plain"
    hosts: dict[str, HostRecord]
    why_plain: str = ""
    uplink: str | None = None

    @property
    def is_running(self) -> bool:
        return self.hosts[HEAD].state != "failed"

    def pid(self, host: str) -> int:
        """Of the first process of a host that is up."""
        keeper = self.hosts[host].keeper
        assert keeper is not None
        return keeper.pid

    def port(self, host: str, daemon: str, usual: int) -> int:
        return self.hosts[host].ports.get(daemon, usual)

    def write(self, places: Places) -> None:
        partial = places / "cluster.json.partial"
        partial.write_text(self.model_dump_json(indent=1) + "\n")
        partial.replace(places / _FILE)


def read_state(places: Places) -> ClusterState | None:
    """None if there is no cluster. Raises `HostError` if the file is damaged."""
    if not (file := places / _FILE).exists():
        return None
    try:
        state = ClusterState.model_validate_json(read_text(file, error=HostError, max_bytes=1 << 22))
        if set(state.hosts) == {HEAD, *state.options.node_names}:
            return state
    except ValidationError:
        pass
    raise HostError(f"{shown(file)}: invalid state of a development cluster; run: glmforge cluster dev down")
