"""Signals that this process sends to itself; each arrives before `os.kill` returns to the next line of Python."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from glmforge.training.errors import DivergedError, Preempted
from glmforge.training.hooks import preemption
from glmforge.training.hooks.preemption import SIGNALS, PreemptionHook
from helpers.hooks import FakeTrainer, events


@pytest.fixture
def trainer(tmp_path: Path):
    trainer = FakeTrainer(PreemptionHook(), root=tmp_path)
    trainer.start()
    yield trainer
    trainer.hooks[0].close()


def end(trainer: FakeTrainer, error: Exception | None) -> None:
    """What `Trainer.fit` does at its end."""
    try:
        if error is not None:
            raise error
    finally:
        trainer.hooks[0].close()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_becomes_a_flag_and_an_event_once_saved(trainer: FakeTrainer, tmp_path: Path, number: int) -> None:
    trainer.step()
    assert trainer.votes == set()
    os.kill(os.getpid(), number)
    assert trainer.votes == {"preempt"}
    trainer.step()
    assert events(tmp_path) == []  # not saved yet
    with pytest.raises(Preempted):
        end(trainer, Preempted("saved"))
    ((event, step, detail),) = events(tmp_path)
    assert (event, step) == ("preempted", 2)
    assert detail.startswith(f"{signal.Signals(number).name} on 1 of 1 ranks; saved ")


def interrupt_a_fork(root: Path, handler: object, *signals: int) -> tuple[int, set[str]]:
    """Status of a process that gets these signals while SIGINT is set so before it trains, and what it asked for."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
        trainer = FakeTrainer(PreemptionHook(), root=root)
        raised = threading.Event()
        trainer.vote = lambda name: (trainer.votes.add(name), raised.set())
        trainer.start()
        for number in signals:
            os.kill(os.getpid(), number)
            if handler != signal.SIG_IGN:
                raised.wait(60)
        (root / "votes").write_text(" ".join(trainer.votes))
        if len(signals) > 1:
            threading.Event().wait(60)  # for the thread that ends this process
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, set((root / "votes").read_text().split()) if (root / "votes").exists() else set()


def test_ctrl_c_becomes_a_flag(tmp_path: Path) -> None:
    assert interrupt_a_fork(tmp_path, signal.default_int_handler, signal.SIGINT) == (0, {"interrupt"})


def test_where_ctrl_c_is_ignored_it_stays_ignored(tmp_path: Path) -> None:
    assert interrupt_a_fork(tmp_path, signal.SIG_IGN, signal.SIGINT) == (0, set())


def test_a_second_ctrl_c_ends_the_process(tmp_path: Path) -> None:
    assert interrupt_a_fork(tmp_path, signal.default_int_handler, signal.SIGINT, signal.SIGINT)[0] == 130


def test_sigterm_after_ctrl_c_is_the_second(tmp_path: Path) -> None:
    """torchrun passes a second Ctrl-C on as SIGTERM."""
    status, _ = interrupt_a_fork(tmp_path, signal.default_int_handler, signal.SIGINT, signal.SIGTERM)
    assert status == -signal.SIGTERM


def test_the_handler_for_ctrl_c_of_before_comes_back(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        hook = PreemptionHook()
        FakeTrainer(hook, root=tmp_path).start()
        assert signal.getsignal(signal.SIGINT) != signal.default_int_handler
        hook.close()
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [None, DivergedError("while saving")])
def test_no_event_of_a_run_that_was_not_saved_for_it(
    trainer: FakeTrainer, tmp_path: Path, error: Exception | None
) -> None:
    if error is not None:
        os.kill(os.getpid(), signal.SIGTERM)
        trainer.step()
        with pytest.raises(DivergedError):
            end(trainer, error)
    end(trainer, None)
    assert events(tmp_path) == []


def test_the_handlers_of_before_come_back(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = PreemptionHook()
    FakeTrainer(hook, root=tmp_path).start()
    assert all(signal.getsignal(number) != before[number] for number in SIGNALS)
    hook.close()
    hook.close()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_in_another_thread_signals_are_left_alone(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = PreemptionHook()
    thread = threading.Thread(target=FakeTrainer(hook, root=tmp_path).start)
    thread.start()
    thread.join()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    hook.close()


def test_the_same_sigterm_twice_is_one(trainer: FakeTrainer) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.votes == {"preempt"}


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        (signal.SIGTERM, signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGTERM, 0),
        (signal.SIGUSR1, signal.SIGUSR1, 0),
    ],
)
def test_a_second_sigterm_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int, status: int
) -> None:
    clock = iter((100.0, 100.0 + preemption._SAME_REQUEST_S + 1))
    monkeypatch.setattr(preemption, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    child = os.fork()
    if child == 0:
        try:
            FakeTrainer(PreemptionHook(), root=tmp_path).start()
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
