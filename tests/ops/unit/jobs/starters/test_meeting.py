"""Where ranks meet: whom the first node is asked to reach, and what is made of its answer."""

from collections.abc import Sequence

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs.starters import meeting
from glmforge_ops.jobs.starters.base import Ranks, Running
from glmforge_ops.jobs.starters.meeting import MOST_ASKED, find_meeting_place


class Asked:
    """A starter that is asked, and starts nothing."""

    name = "asked"

    def __init__(self, answer: str = "Welcome to node a.\n10.0.0.1 20007\n") -> None:
        self.answer, self.node, self.words = answer, "", list[str]()

    def ask(self, node: str, words: Sequence[str]) -> str:
        self.node, self.words = node, list(words)
        return self.answer

    def start(self, ranks: Ranks) -> Running:
        raise NotImplementedError


def test_the_first_node_is_asked_about_the_others() -> None:
    starter = Asked()
    assert find_meeting_place(starter, ["a", "b", "c"], 77, address_of=str.upper) == ("10.0.0.1", 20_007)
    assert starter.node == "a"
    assert starter.words[-4:] == ["glmforge_ops.jobs.ranks.meeting", "77", "B", "C"]


def test_of_many_nodes_some_are_asked_about() -> None:
    """Their names are looked up one after the other."""
    starter = Asked()
    find_meeting_place(starter, [f"n{i}" for i in range(1000)], 77)
    others = starter.words[starter.words.index("77") + 1 :]
    assert len(others) == MOST_ASKED
    assert others[0] == "n1"
    assert int(others[-1][1:]) > 800


def test_a_single_node_elsewhere_is_asked_for_a_port() -> None:
    starter = Asked("127.0.0.1 20009")
    assert find_meeting_place(starter, ["a"], 77) == ("127.0.0.1", 20_009)
    assert starter.words[-1] == "77"


def test_this_machine_alone_is_not_asked() -> None:
    starter = Asked()
    address, port = find_meeting_place(starter, ["localhost"], 77)
    assert (address, starter.node) == ("127.0.0.1", "")
    assert 20_000 <= port < 30_000


def test_this_machine_among_the_others_goes_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is the localhost there is another one."""
    monkeypatch.setattr(meeting, "address_for", lambda others: "10.0.0.254" if others == ["A"] else None)
    starter = Asked()
    find_meeting_place(starter, ["a", "localhost", "b"], 77, address_of=str.upper)
    assert starter.words[-2:] == ["10.0.0.254", "B"]
    with pytest.raises(LaunchError, match="c: there is no route to it from this machine"):
        find_meeting_place(starter, ["c", "localhost"], 77)


@pytest.mark.parametrize("answer", ["", "nothing\n", "10.0.0.1 port", "node1 20007"])
def test_an_answer_that_is_none(answer: str) -> None:
    with pytest.raises(LaunchError, match=r"a: answers .* instead of an address and a port"):
        find_meeting_place(Asked(answer), ["a", "b"], 77)
