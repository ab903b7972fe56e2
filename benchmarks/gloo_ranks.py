"""Processes of this machine that are the ranks of a job: one thread each, a gloo group, one task after the other.

    with Ranks(4) as ranks:
        results = ranks.run(function, argument)  # what function(argument) returned on each rank, rank 0 first

The processes are forked from a server that has imported torch and the trainer once, and stay for some tasks, so that
what torch does on first use is seldom done. While they wait they take no processor time. After `TASKS_OF_A_PROCESS` new
ones take their place: gloo keeps the threads of groups that have been given up, and after a hundred layouts a rank
had 280 of them, and took twice as long for everything.
"""

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIME_LIMIT_S = 300
TASKS_OF_A_PROCESS = 4


class Ranks:
    """`size` processes; entering starts them, leaving ends them. A task may take `time_limit_s` seconds."""

    def __init__(self, size: int, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.size, self.time_limit_s = size, time_limit_s

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["glmforge.backend.native", "glmforge.dryrun.observe"])
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._ends: list[Connection] = []
        self._processes = []
        self._num_tasks = 0
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank_main, args=(rank, self.size, self._folder.name, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def _stop(self) -> None:
        for process in self._processes:
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            process.join()
        self._folder.cleanup()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a module's function on all ranks at once. Raises RuntimeError with the first traceback, or when late."""
        if self._num_tasks == TASKS_OF_A_PROCESS:
            self._stop()
            self._start()
        self._num_tasks += 1
        for end in self._ends:
            end.send((function, args))
        results: dict[int, Any] = {}
        while len(results) < self.size:
            left = [end for rank, end in enumerate(self._ends) if rank not in results]
            ready = wait(left, self.time_limit_s)
            if not ready:
                raise RuntimeError(f"{function.__name__}{args}: not done after {self.time_limit_s} s")
            for end in ready:
                assert isinstance(end, Connection)
                failed, answer = end.recv()
                if failed:
                    raise RuntimeError(f"{function.__name__} failed on a rank:\n{answer}")
                results[self._ends.index(end)] = answer
        return [results[rank] for rank in range(self.size)]


def _rank_main(rank: int, size: int, folder: str, end: Connection) -> None:
    import torch
    import torch.distributed as dist

    from glmforge.kernels.allocator import keep_large_blocks

    torch.set_num_threads(1)
    keep_large_blocks()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=size)
    while True:
        try:
            function, args = end.recv()
        except EOFError:  # the parent has gone
            return
        try:
            end.send((False, function(*args)))
        except Exception:  # noqa: BLE001 - told to the parent, whatever it is
            end.send((True, traceback.format_exc()))
