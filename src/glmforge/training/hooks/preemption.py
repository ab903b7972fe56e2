"""Give way in order: a signal from the scheduler saves the run and ends it with a code that has it started again.

Slurm sends a warning before the time limit or a preemption (`--signal=USR1@120`, the user's choice of signal), and
SIGTERM when it is time. A handler may do next to nothing, so it casts a vote; all ranks hear of it in the next step,
the checkpoint hook saves, and the trainer ends with `Preempted`.

Ctrl-C does the same, and says so at once; no launcher should restart the run, so it ends with `Interrupted`. A
second one ends the process on the spot, also one that waits for a peer. (torchrun sends each on to its workers once; a
second one, which finds it waiting for them, they get as SIGTERM.)
"""

import logging
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import torch

from glmforge.errors import GlmforgeError
from glmforge.runtime.interrupts import INTERRUPTED, InterruptWatch, say
from glmforge.training.errors import Preempted
from glmforge.training.order import Priority
from glmforge.training.step import StepResult
from glmforge.training.trainer import Hook, Trainer

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""What a run gives way to."""

_SAME_REQUEST_S = 5.0
"""A SIGTERM so soon after another is the same one, sent twice: once by Slurm to all processes of the step, once by
torchrun, which passes it on to its workers."""


class PreemptionHook(Hook):
    """Votes "preempt" on each of `SIGNALS`, "interrupt" on SIGINT. A second SIGTERM or SIGINT, or a SIGTERM
    after SIGINT, ends the process at once."""

    name = "preemption"
    priority = Priority.COMMAND

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._before: dict[int, Any] = {}
        self._received: dict[int, float] = {}
        self._agreed_at: float | None = None
        self._who = ""
        self._interrupts = InterruptWatch(self._on_interrupt)

    def on_train_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        if threading.current_thread() is not threading.main_thread():
            logger.debug("signals cannot save this run: it is not in the main thread")
            return
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        self._interrupts.start()

    def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
        if result.votes & {"preempt", "interrupt"} and self._agreed_at is None:
            self._agreed_at = time.monotonic()
            self._who = self._who_received(trainer)

    def close(self) -> None:
        """Restore the handlers; after a preemption, record it. (The trainer raises `Preempted` once all is saved.)

        Where one of several ranks fails with an error that is not the user's, SIGTERM stays held off: a launcher sends
        it to all as soon as one has died, and this one is to say first which it was (`glmforge.parallel.peers`).
        """
        for number, handler in self._before.items():
            if number != signal.SIGTERM or not self._has_to_explain():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
        self._interrupts.stop()
        if isinstance(sys.exception(), Preempted) and self._agreed_at is not None and self._trainer is not None:
            self._record(self._trainer, since=min([*self._received.values(), self._agreed_at]))

    def _has_to_explain(self) -> bool:
        error = sys.exception()
        several = self._trainer is not None and self._trainer.world.size > 1
        return several and isinstance(error, Exception) and not isinstance(error, GlmforgeError)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        assert self._trainer is not None
        now = time.monotonic()
        first = self._received.setdefault(number, now)
        if number == signal.SIGTERM and (now - first > _SAME_REQUEST_S or signal.SIGINT in self._received):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._trainer.vote("preempt")

    def _on_interrupt(self, count: int) -> None:
        """In a thread of its own."""
        assert self._trainer is not None
        is_main = self._trainer.world.is_main
        if count > 1:
            if is_main:
                say("interrupted again: exiting without saving; run it again to resume from the last checkpoint")
            os._exit(INTERRUPTED)
        self._received[signal.SIGINT] = time.monotonic()
        self._trainer.vote("interrupt")
        if is_main:
            say("interrupted: finishing this step, then saving; press again to exit without saving")

    def _who_received(self, trainer: Trainer) -> str:
        """'SIGUSR1 on 4 of 4 ranks'. All ranks call this together."""
        world = trainer.world
        numbers = (*SIGNALS, signal.SIGINT)
        received = torch.tensor([number in self._received for number in numbers], dtype=torch.int64)
        counts = world.sum(received.to(world.device)).tolist()
        some = [f"{number.name} on {n} of {world.size} ranks" for number, n in zip(numbers, counts, strict=True) if n]
        return ", ".join(some) or "no signal"

    def _record(self, trainer: Trainer, since: float) -> None:
        trainer.event("preempted", f"{self._who}; saved {time.monotonic() - since:.1f} s after it")
