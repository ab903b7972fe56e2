import json
import os
from pathlib import Path
from typing import Any

import pytest

from glmforge.errors import HostError
from glmforge.runtime.process import identify
from glmforge_ops.dev.options import HEAD, DevOptions
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.state import ClusterState, HostRecord, read_state


def make_state(places: Places) -> ClusterState:
    places.make()
    us = identify(os.getpid())
    hosts = {name: HostRecord(address="127.0.0.1", keeper=us) for name in (HEAD, "node1")}
    state = ClusterState(options=DevOptions(nodes=1), mode="plain", ssh=False, hosts=hosts)
    state.write(places)
    return state


def test_what_is_written_is_read(tmp_path: Path) -> None:
    places = Places(tmp_path / "cluster")
    assert read_state(places) is None
    state = make_state(places)
    assert read_state(places) == state


def test_states_of_a_host(tmp_path: Path) -> None:
    state = make_state(Places(tmp_path / "cluster"))
    node = state.hosts["node1"]
    assert (node.state, state.is_running) == ("up", True)
    node.cut = True
    assert node.state == "cut"
    assert node.keeper is not None
    node.keeper = node.keeper.model_copy(update={"began": node.keeper.began - 1})  # the id is another process's now
    assert node.state == "failed"
    state.hosts[HEAD].keeper = None
    assert not state.is_running


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "magic"}, "is not the state"),
        ({"options": {"nodes": 100_000}}, "is not the state"),
        ({"hosts": {}}, "names other hosts"),
        ({"surprise": 1}, "is not the state"),
    ],
)
def test_a_file_that_is_no_state(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    places = Places(tmp_path / "cluster")
    make_state(places)
    places.state.write_text(json.dumps(json.loads(places.state.read_text()) | change))
    with pytest.raises(HostError, match=reason) as raised:
        read_state(places)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_half_there(tmp_path: Path) -> None:
    places = Places(tmp_path / "cluster")
    make_state(places)
    places.state.write_text(places.state.read_text()[:100])
    with pytest.raises(HostError, match="is not the state of a development cluster"):
        read_state(places)
