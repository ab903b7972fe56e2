"""A training job as a launcher sees it: N processes that tests may signal and kill, started again when they ask for it.

    job = start_job(config, world_size=4, log_dir=..., overrides_of_rank=...)
    os.kill(job.pids[2], signal.SIGKILL)
    codes = job.wait(60)

Like `srun --kill-on-bad-exit`: when one process ends badly, the others get some seconds and are then killed. The
processes are forked from a server that has imported torch once, so a start takes a second and not ten.

Every rank notes each step it takes in `<log_dir>/<launch>-<rank>.jsonl`: before it what it was given to train on, after
it the loss, and when.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from helpers.distributed import (
    die_with_parent,
    enter_host,
    fork_server,
    free_port,
    redirect_output,
    set_environment,
)
from helpers.linked_hosts import LinkedHost

_GRACE_S = 5.0


@dataclass
class Job:
    """A launch of a run."""

    ranks: Sequence[BaseProcess]
    logs: Sequence[Path]
    steps: Sequence[Path]

    @property
    def pids(self) -> list[int]:
        return [int(process.pid or 0) for process in self.ranks]

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """Send a signal to some ranks, to all if none is named."""
        for rank in range(len(self.ranks)) if ranks is None else ranks:
            with suppress(ProcessLookupError):
                os.kill(self.pids[rank], number)

    def kill_before_note(self, rank: int) -> None:
        """Have a rank die once it has taken a step that is saved, before it notes and saves it; returns when it has."""
        doomed_file(self.steps[rank]).touch()
        self.wait_until(lambda: not self.ranks[rank].is_alive())

    @property
    def is_alive(self) -> bool:
        return any(process.is_alive() for process in self.ranks)

    def taken_steps(self) -> list[dict[str, Any]]:
        """What rank 0 has noted so far of its start and of steps that it has come to the end of."""
        return [record for record in read_steps(self.steps[0]) if "given" not in record]

    def wait_until(self, reached: Callable[[], bool], timeout_s: float = 240.0) -> bool:
        """Poll until `reached()`; False if the job ended before."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            if not self.is_alive:
                return False
            assert time.monotonic() < deadline, f"not reached in {timeout_s:g} s\n{self.tail()}"
            time.sleep(0.002)  # looks at files that other processes write; the outcome does not depend on it
        return True

    def wait(self, timeout_s: float = 1200.0) -> list[int]:
        """Exit codes of all ranks (negative: the signal that killed it), after the job has ended."""
        deadline = time.monotonic() + timeout_s
        running = {process.sentinel: process for process in self.ranks}
        while running and (left := deadline - time.monotonic()) > 0:
            for sentinel in connection.wait(list(running), timeout=left):
                process = running.pop(sentinel)
                process.join()
                if process.exitcode != 0:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        for process in self.ranks:
            self._kill(process)
        return [int(process.exitcode if process.exitcode is not None else 1) for process in self.ranks]

    def tail(self) -> str:
        """The ends of all logs."""
        tails = [f"--- {log.name}\n{log.read_bytes()[-2500:].decode(errors='replace')}" for log in self.logs]
        return "\n".join(tails)

    @staticmethod
    def _kill(process: BaseProcess) -> None:
        if process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()


def start_job(
    config_path: Path,
    world_size: int,
    log_dir: Path,
    launch: int,
    overrides_of_rank: Callable[[int], list[str]] = lambda rank: [],
    stop_after: int | None = None,
    hosts: Sequence[LinkedHost] = (),
    hook_of: Callable[[Path], Any] | None = None,
) -> Job:
    """Start the run of `config_path` on `world_size` ranks, dealt to `hosts` if there are any; `stop_after` that step
    it saves and ends. `hook_of` makes one more hook, from where the rank's notes are."""
    context = fork_server()
    log_dir.mkdir(parents=True, exist_ok=True)
    names = [f"{launch:03d}-{rank}" for rank in range(world_size)]
    logs, steps = [log_dir / f"{name}.log" for name in names], [log_dir / f"{name}.jsonl" for name in names]
    port = free_port()
    ranks = [
        context.Process(
            target=_rank_main,
            args=(
                r,
                world_size,
                port,
                config_path,
                overrides_of_rank(r),
                logs[r],
                steps[r],
                stop_after,
                hosts,
                hook_of,
            ),
        )
        for r in range(world_size)
    ]
    for process in ranks:
        process.start()
    return Job(ranks, logs, steps)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a rank's notes."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def doomed_file(steps: Path) -> Path:
    """Tells the rank with these notes to die."""
    return steps.with_suffix(".doomed")


def _rank_main(
    rank: int,
    world_size: int,
    port: int,
    config_path: Path,
    overrides: list[str],
    log: Path,
    steps: Path,
    stop_after: int | None,
    hosts: Sequence[LinkedHost],
    hook_of: Callable[[Path], Any] | None,
) -> None:
    os.setsid()
    enter_host(rank, world_size, hosts)
    threading.Thread(target=die_with_parent, daemon=True).start()
    redirect_output(log)
    set_environment(rank, world_size, port, hosts)
    code = _train(config_path, overrides, steps, stop_after, hook_of)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skips the teardown of gloo's threads after a failure


def _train(
    config_path: Path,
    overrides: list[str],
    steps: Path,
    stop_after: int | None,
    hook_of: Callable[[Path], Any] | None,
) -> int:
    """Exit code of the run, as the command line gives it."""
    from glmforge.config import load_config
    from glmforge.errors import GlmforgeError
    from glmforge.recipes.train import train

    try:
        more = [] if hook_of is None else [hook_of(steps)]
        train(load_config(config_path, overrides), [make_note_hook(steps, stop_after), *more])
    except GlmforgeError as error:
        print(f"glmforge: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException:  # noqa: BLE001 - whatever it is, the launcher sees a failed process
        traceback.print_exc()
        return 1
    return 0


def make_note_hook(steps: Path, stop_after: int | None) -> Any:
    """A hook that notes each step's samples before it and its loss after it. What a rank has saved it has noted."""
    from glmforge.training.step import StepResult
    from glmforge.training.trainer import Hook, Trainer

    class NoteHook(Hook):
        name = "notes"

        def on_train_start(self, trainer: Trainer) -> None:
            self.file = steps.open("a")
            self.note({"started_at": trainer.state.step, "time": time.time()})

        def on_step_start(self, trainer: Trainer) -> None:
            assert trainer.batch is not None
            self.note(
                {
                    "given": trainer.state.step + 1,
                    "phase": trainer.phase.name,
                    "data_rank": trainer.world.data_rank,
                    "samples": trainer.batch.sample_indices,
                }
            )
            if stop_after is not None and trainer.state.step + 1 >= stop_after:
                trainer.vote("stop")

        def on_step_end(self, trainer: Trainer, result: StepResult) -> None:
            if doomed_file(steps).exists() and trainer.state.step % saved_every(trainer) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.note(
                {
                    "step": trainer.state.step,
                    "loss": result.losses.get("loss", 0.0),
                    "seconds": result.seconds,
                    "time": time.time(),
                }
            )

        def note(self, record: dict[str, Any]) -> None:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def saved_every(trainer: Trainer) -> int:
        config = trainer.config.checkpoint
        return config.ephemeral_every_steps or config.every_steps or 1

    return NoteHook()
