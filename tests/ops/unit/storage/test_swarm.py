"""How units spread: read once, doubled in every round, whoever is lost or cut off."""

import random

import pytest

from glmforge_ops.storage.swarm import GIVEN_AT_ONCE, RELAYED_AT_ONCE, SOURCE_AT_ONCE, Swarm, Task, Unit, Way

NODES = [f"node{i}" for i in range(16)]


def units(number: int) -> list[Unit]:
    return [(0, at) for at in range(number)]


class Rounds:
    """Everybody gets one unit in a round. What `fails(node, task)` says is not got; `lose(round)` names the lost."""

    def __init__(self, swarm: Swarm, nodes: list[str]) -> None:
        self.swarm, self.live = swarm, list(nodes)
        self.read: list[Unit] = []
        self.relayed = 0

    def run(self, fails=lambda node, task: False, lose=lambda number: ()) -> int:
        number = 0
        while any(self.swarm.lacking_files(node) for node in self.live):
            tasks = {}
            for node in self.live:
                if self.swarm.lacking_files(node) and (task := self.swarm.next_task(node)) is not None:
                    tasks[node] = task
            assert tasks, "nobody has anything to do"
            self.check_limits(list(tasks.values()))
            for node in lose(number):
                self.live.remove(node)
                self.swarm.lose(node)
            for node, task in tasks.items():
                if node not in self.live:
                    continue
                if task.giver not in {"", *self.live} or fails(node, task):
                    self.swarm.failed(node)
                    continue
                self.read += [task.unit] * (task.way is Way.SOURCE)
                self.relayed += task.way is Way.RELAY
                self.swarm.done(node, f"digest of {task.unit}")
            number += 1
        return number

    def check_limits(self, tasks: list[Task]) -> None:
        ways = [task.way for task in tasks]
        assert ways.count(Way.SOURCE) <= SOURCE_AT_ONCE
        assert ways.count(Way.RELAY) <= RELAYED_AT_ONCE
        assert all(sum(task.giver == node for task in tasks) <= GIVEN_AT_ONCE for node in self.live)


def begin(number: int, nodes: list[str] = NODES, **options: object) -> Rounds:
    swarm = Swarm(units(number), **options)  # type: ignore[arg-type]
    swarm.join({node: {} for node in nodes})
    return Rounds(swarm, nodes)


@pytest.mark.parametrize("number", [1, 7, 64])
def test_the_source_is_read_once_and_rounds_are_few(number: int) -> None:
    rounds = begin(number)
    # One unit to 16 nodes takes log2(16) rounds and the reading; more follow each other.
    assert rounds.run() <= number + 4 + number // 4 + 2
    assert sorted(rounds.read) == units(number)
    assert rounds.relayed == 0


def test_lost_nodes_cost_only_what_they_alone_had() -> None:
    rounds = begin(40)
    rounds.run(lose=lambda number: NODES[:3] if number == 4 else ())
    assert set(rounds.read) == set(units(40))
    assert len(rounds.read) <= 40 + 3 * 5  # a lost node had at most one unit per round


def test_what_only_a_lost_node_had_is_read_again() -> None:
    swarm = Swarm(units(1))
    swarm.join({"a": {}, "b": {}})
    assert swarm.next_task("a") == Task((0, 0), Way.SOURCE)
    swarm.done("a", "x")
    swarm.lose("a")
    assert swarm.next_task("b") == Task((0, 0), Way.SOURCE)


def test_a_node_that_reaches_no_other_gets_all_through_this_machine() -> None:
    rounds = begin(20)
    rounds.run(fails=lambda node, task: node == NODES[5] and task.way is Way.PEER)
    assert rounds.swarm.alone == {NODES[5]}
    assert sorted(rounds.read) == units(20)
    assert rounds.relayed > 0


def test_a_node_that_nobody_reaches_does_not_make_others_alone() -> None:
    rounds = begin(20)
    rounds.run(fails=lambda node, task: task.giver == NODES[5] and task.way is Way.PEER)
    assert rounds.swarm.alone <= {NODES[5]}


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_failures_ends(seed: int) -> None:
    chance = random.Random(seed)
    rounds = begin(12, NODES[:6], private=NODES[:1], seed=seed)
    rounds.run(
        fails=lambda node, task: task.way is not Way.SOURCE and chance.random() < 0.3,
        lose=lambda number: [rounds.live[-1]] if number in (3, 6) else (),
    )
    assert set(rounds.read) >= set(units(12)) - {unit for unit in units(12) if rounds.swarm.digests.get(unit) is None}


def test_what_nodes_have_already_is_not_read() -> None:
    swarm = Swarm(units(4))
    swarm.join({"a": {(0, 0): "x", (0, 1): "y"}, "b": {(0, 0): "x"}})
    rounds = Rounds(swarm, ["a", "b"])
    rounds.run()
    assert sorted(rounds.read) == [(0, 2), (0, 3)]


def test_of_different_claims_none_is_believed() -> None:
    swarm = Swarm(units(1))
    swarm.join({"a": {(0, 0): "x"}, "b": {(0, 0): "y"}, "c": {(0, 0): "x"}})
    assert [list(swarm.lacking_files(node)) for node in "abc"] == [[0], [0], [0]]


def test_damage_is_got_anew_from_another_node() -> None:
    swarm = Swarm(units(2))
    have = {unit: "x" for unit in units(2)}
    swarm.join({"a": have, "b": have})
    swarm.has_damaged("b", [(0, 1)])
    assert swarm.next_task("b") == Task((0, 1), Way.PEER, "a")
