"""Jobs run in turn from here: how many at once, in which order, and what is left out."""

import random

import pytest

from glmforge.errors import LaunchError
from glmforge_ops.jobs import several
from glmforge_ops.jobs.several import Several
from glmforge_ops.jobs.state import JobState


class World(Several):
    """Jobs that start when they are submitted, and end one at a time, by chance or as told, at each pause."""

    def __init__(self, states, *, fails=(), seed=0):
        self.states = dict(states)
        self.fails = set(fails)
        self.chance = random.Random(seed)
        self.order, self.cancelled, self.told, self.most, self.pauses = [], [], [], 0, 0
        self.at_pause = lambda: None
        self.is_wanted = lambda: True

    def directory(self, name):
        return name

    def run(self, needs, at_once=1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(several, "pause", self.pause)
            patch.setattr(several, "submit", self.submit)
            return self._run_in_turn(needs, at_once, lambda job, words: self.told.append((job, words)), 0)

    def _look(self, names):
        return {name: (self.states[name], "") for name in names}

    def _is_cancelled(self, began):
        return not self.is_wanted()

    def _cancel(self, name):
        self.cancelled.append(name)
        if name == "a":
            raise LaunchError("no answer")

    def submit(self, name):
        assert self.states[name].is_over, "it runs already"
        self.order.append(name)
        self.states[name] = JobState.RUNNING
        self.most = max(self.most, len(self.running()))

    def running(self):
        return [name for name, state in self.states.items() if state is JobState.RUNNING]

    def pause(self):
        self.pauses += 1
        assert self.pauses < 1000, "it never ends"
        self.at_pause()
        name = self.chance.choice(self.running())
        self.states[name] = JobState.FAILED if name in self.fails else JobState.FINISHED


def jobs(*names, state=JobState.NEW):
    return dict.fromkeys(names, state)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("at_once", [1, 5, 100])
def test_so_many_at_once_and_no_more(at_once, seed):
    world = World(jobs(*"abcdefghij"), seed=seed)
    ended = world.run(dict.fromkeys(world.states, ()), at_once)
    assert world.most == min(at_once, 10)
    assert world.order == list("abcdefghij")
    assert set(ended.values()) == {JobState.FINISHED}


@pytest.mark.parametrize("seed", range(2))
def test_each_starts_after_what_it_needs(seed):
    world = World(jobs(*"abcd"), seed=seed)
    turns = {"a": "", "b": "a", "c": "a", "d": "bc"}
    world.run(turns, at_once=4)
    assert world.order[0] == "a"
    assert world.order[-1] == "d"
    assert world.most == 2


def test_what_needs_one_that_failed_is_left_out_with_all_behind_it():
    world = World(jobs(*"abcde"), fails={"b"})
    turns = {"a": "", "b": "a", "c": "b", "d": "c", "e": ""}
    ended = world.run(turns)
    assert world.order == ["a", "b", "e"]
    assert ended["b"] is JobState.FAILED
    assert ended["c"] is ended["d"] is JobState.NEW
    assert ("c", "skipped: b has not finished") in world.told
    assert ("d", "skipped: c has not finished") in world.told


def test_what_has_finished_is_not_run_and_what_failed_before_is():
    world = World({"a": JobState.FINISHED, "b": JobState.FAILED, "c": JobState.CANCELLED, "d": JobState.STOPPED})
    ended = world.run({"a": "", "b": "a", "c": "", "d": ""})
    assert world.order == ["b", "c", "d"]
    assert set(ended.values()) == {JobState.FINISHED}


def test_one_that_runs_already_is_waited_for_and_counts():
    world = World({"a": JobState.RUNNING, **jobs("b")})
    world.run({"a": "", "b": ""})
    assert world.order == ["b"]
    assert world.most == 1
    assert world.told[0] == ("a", "is running already, waiting for it")


def test_one_that_ran_already_and_fails_is_not_started_again():
    world = World({"a": JobState.RUNNING, **jobs("b")}, fails={"a"})
    ended = world.run({"a": "", "b": "a"})
    assert world.order == []
    assert ended == {"a": JobState.FAILED, "b": JobState.NEW}


def test_damaged_ones_hold_up_nobody_but_those_that_need_them():
    world = World({"a": JobState.DAMAGED, **jobs("b", "c")})
    ended = world.run({"a": "", "b": "a", "c": ""})
    assert world.order == ["c"]
    assert ended["b"] is JobState.NEW


def test_nothing_further_starts_when_it_is_not_wanted_any_more():
    world = World(jobs(*"abc"))
    world.is_wanted = lambda: not world.order
    ended = world.run(dict.fromkeys("abc", ()))
    assert world.order == ["a"]
    assert ended == {"a": JobState.FINISHED, "b": JobState.NEW, "c": JobState.NEW}


def test_one_that_cannot_be_asked_to_end_keeps_none_from_it():
    world = World(jobs(*"ab"))

    def interrupt():
        raise KeyboardInterrupt

    world.at_pause = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.run(dict.fromkeys("ab", ()), at_once=2)
    assert world.cancelled == ["a", "b"]
    assert ("a", "could not be asked to end: no answer") in world.told
