"""Processes that find each other, or say in one line why they do not. Each is a thread here, and a node of its own."""

import logging
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch.distributed as dist

from glmforge.runtime import meeting
from glmforge.runtime.launch import LaunchEnvironment
from glmforge.runtime.meeting import MeetingError, open_store, roll_call
from helpers.distributed import free_port

HOST = socket.gethostname()
PATIENT_S = 60.0
"""Of those who are to meet, on a busy machine."""
SOON_S = 0.2


def node(rank: int, size: int, port: int, address: str = "127.0.0.1") -> LaunchEnvironment:
    return LaunchEnvironment(rank, size, 0, 1, num_nodes=size, address=address, port=port)


def join(launch: LaunchEnvironment, wait_s: float, facts: Mapping[str, str]) -> str:
    """What the process says, empty if all have met; a store that its rank 0 keeps stays until the test's end."""
    try:
        store = open_store(launch, wait_s=wait_s, timeout_s=PATIENT_S)
        _KEPT.append(store)
        roll_call(store, launch, lambda: facts, wait_s=wait_s)
    except MeetingError as error:
        return str(error)
    return ""


_KEPT: list[dist.Store] = []


def join_all(*processes: tuple[LaunchEnvironment, float, Mapping[str, str]]) -> list[str]:
    with ThreadPoolExecutor(len(processes)) as pool:
        found = list(pool.map(lambda process: join(*process), processes))
    _KEPT.clear()
    return found


def refused(launch: LaunchEnvironment) -> str:
    with pytest.raises(MeetingError) as error:
        open_store(launch, wait_s=SOON_S, timeout_s=SOON_S)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_nodes_that_come_and_agree_meet_and_say_whom_they_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glmforge")
    port = free_port()
    rest = [(node(rank, 3, port), PATIENT_S, {"torch": "2"}) for rank in (2, 1, 0)]
    assert join_all(*rest) == ["", "", ""]
    waiting = [record.getMessage() for record in caplog.records]
    assert all(line.startswith(f"127.0.0.1:{port}: ") and line.endswith(" s left") for line in waiting)


def test_a_node_whose_rank_0_never_comes_says_what_it_tried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glmforge")
    port = free_port()
    line = refused(node(1, 2, port))
    assert line.startswith(
        f"rank 1 on {HOST} did not reach rank 0 at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) within"
    )
    assert "0.2 s: Connection refused; start node 0" in line
    assert caplog.messages == [f"127.0.0.1:{port}: Connection refused; waiting for rank 0, 0 s left"]


def test_a_rank_does_not_wait_long_for_a_torchrun_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store was there before the ranks: nobody will come. Rank 0 is no other than the rest."""
    monkeypatch.setattr(meeting, "_AGENT_S", SOON_S)
    for rank in range(2):
        launch = replace(node(rank, 2, free_port()), agent_serves=True)
        with pytest.raises(MeetingError, match=f"did not reach torchrun at 127.0.0.1:{launch.port} within 0.2 s: Conn"):
            open_store(launch, wait_s=PATIENT_S, timeout_s=PATIENT_S)


def test_an_address_that_no_name_server_knows() -> None:
    """A worker goes on trying, as names may come; rank 0 has no use for an address that is not its own."""
    port = free_port()
    assert "not known" in refused(node(1, 2, port, "no-such-host.invalid"))
    line = refused(node(0, 2, port, "no-such-host.invalid"))
    assert line.startswith(f"MASTER_ADDR no-such-host.invalid does not lead to {HOST}, where rank 0 is (")


def test_an_address_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something answers there, but it is not this rank 0."""
    monkeypatch.setattr(meeting, "_ATTEMPT_S", SOON_S)
    with socket.create_server(("127.0.0.1", 0)) as other:
        elsewhere = other.getsockname()
        connect = socket.create_connection
        monkeypatch.setattr(socket, "create_connection", lambda address, timeout: connect(elsewhere, timeout))
        assert "does not lead to" in refused(node(0, 2, free_port()))


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused(node(0, 2, port)).startswith(f"port {port} (MASTER_PORT) of {HOST} is in use: ")


def test_what_answers_and_is_no_rank_0_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch itself would wait without end for a server that says nothing."""
    monkeypatch.setattr(meeting, "_ATTEMPT_S", SOON_S)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refused(node(1, 2, port)).startswith(
            f"what answers at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) is not "
        )


def test_those_who_came_are_told_who_did_not() -> None:
    port = free_port()
    # Rank 1 is patient: it hears from rank 0, which is not.
    lines = join_all((node(0, 6, port), 1.0, {}), (node(1, 6, port), PATIENT_S, {}))
    assert lines[0].startswith(f"ranks 2 to 5 did not come to 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) within 1 s: ")
    assert lines[1] == lines[0]


def test_a_node_that_differs_is_named_on_all_of_them() -> None:
    port = free_port()
    same = {"glmforge": "0.1 with sources abc", "optim.lr": "0.1", "seed": "1"}
    other = {"glmforge": "0.1 with sources def", "optim.lr": "0.1", "more": "x"}
    lines = join_all(*((node(r, 3, port), PATIENT_S, other if r == 2 else same) for r in range(3)))
    assert lines[0] == lines[1] == lines[2]
    assert lines[0] == (
        f"node {HOST} (rank 2) differs from node {HOST} (rank 0): glmforge is 0.1 with sources def, not 0.1 with "
        "sources abc; seed is not set, not 1; more is x, not left out. Start all nodes with the same glmforge, "
        "configuration and settings"
    )


def test_a_node_that_has_another_s_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, and the job goes on without it."""
    names = iter(["first", "second", "third"])
    monkeypatch.setattr(meeting, "this_process", lambda: next(names))
    port = free_port()
    lines = join_all(*((node(rank, 2, port), PATIENT_S, {}) for rank in (0, 1, 1)))
    assert sorted(map(bool, lines)) == [False, False, True]
    (line,) = filter(None, lines)
    assert line.startswith("rank 1 of this run is on ")
    assert f" already: {HOST} has the number of another node, or was started twice" in line


@pytest.mark.parametrize(("ranks", "words"), [([3], "rank 3"), ([2, 3, 4, 7], "ranks 2 to 4, 7")])
def test_ranks_in_words(ranks: list[int], words: str) -> None:
    assert meeting._ranges(ranks) == words


def test_on_one_node_nothing_is_compared() -> None:
    def facts() -> Mapping[str, str]:
        raise AssertionError("nobody is to ask")

    port = free_port()
    launches = [LaunchEnvironment(rank, 2, rank, 2, address="127.0.0.1", port=port) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        stores = list(pool.map(lambda one: open_store(one, wait_s=PATIENT_S, timeout_s=PATIENT_S), launches))
        calls = [
            pool.submit(roll_call, s, one, facts, wait_s=PATIENT_S) for s, one in zip(stores, launches, strict=True)
        ]
        assert [call.result() for call in calls] == [None, None]


def test_torchrun_s_nodes_are_compared_and_may_be_replaced() -> None:
    """Its agent keeps the store, also when ranks come again under the same attempt."""
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    nodes = [replace(node(rank, 2, agent.port), agent_serves=True) for rank in range(2)]
    for _ in range(2):
        assert join_all(*((one, PATIENT_S, {"torch": "2"}) for one in nodes)) == ["", ""]
    nodes = [replace(one, attempt="1") for one in nodes]
    lines = join_all(*((one, PATIENT_S, {"torch": f"{one.rank}"}) for one in nodes))
    assert lines[0] == lines[1]
    assert "torch is 1, not 0" in lines[0]
