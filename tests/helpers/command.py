"""`glmforge` as a user starts it: real processes, alone, under torchrun, or by hand with a rank's environment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import psutil

from glmforge.config import RunConfig, dump_config
from helpers.distributed import free_port
from helpers.prepared import programs

LIMIT_S = 240.0
"""Generous: nothing is to fail because the machine is busy."""


@dataclass
class Started:
    """A process group of its own, with its output in `log`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_bytes().decode(errors="replace")

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def wait_until(self, reached: Callable[[], bool], *, alive: bool = True) -> None:
        """With `alive`, ending before that is a failure."""
        deadline = time.monotonic() + LIMIT_S
        while not reached():
            assert not alive or self.process.poll() is None, self.output[-3000:]
            assert time.monotonic() < deadline, self.output[-3000:]
            time.sleep(0.01)  # looks at files that other processes write; the outcome does not depend on it

    def wait_for_steps(self, run: Path, count: int) -> None:
        """Until so many steps are recorded."""
        self.wait_until(lambda: num_lines(run / "metrics.jsonl") >= count)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def workers(self, command: str = "train") -> dict[int, int]:
        """Rank -> process id of what torchrun has started."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if command in child.cmdline() and child.ppid() == self.process.pid:
                    rank = child.environ().get("RANK")
                    if rank is not None:  # else a fork of torchrun that is about to become one
                        found[int(rank)] = child.pid
        return found


@dataclass
class Commands:
    """Starts commands in `directory` and ends them with the test."""

    directory: Path
    started: list[Started] = field(default_factory=list)

    def start(
        self,
        *arguments: str,
        ranks: int = 1,
        restarts: int = 0,
        environment: dict[str, str] | None = None,
        prepared: bool = False,
    ) -> Started:
        """`glmforge ARGUMENTS`, under torchrun for more than one rank.

        With `prepared` seconds of imports are saved, and the process number is not the command's (`helpers.prepared`).
        """
        launcher = list[str]()
        if ranks > 1:
            launcher += [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
                f"--max-restarts={restarts}",
            ]
        python = str(programs() / "python") if prepared else sys.executable
        return self.start_program(python, *launcher, "-m", "glmforge", *arguments, environment=environment)

    def start_python(self, *arguments: str, environment: dict[str, str] | None = None) -> Started:
        """`python ARGUMENTS`."""
        return self.start_program(sys.executable, *arguments, environment=environment)

    def start_program(self, *command: str, environment: dict[str, str] | None = None) -> Started:
        log = self.directory / f"{len(self.started):02d}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell starts what runs in the background with Ctrl-C ignored, and tests may be.
                preexec_fn=_heed_interrupts,
            )
        self.started.append(Started(process, log))
        return self.started[-1]

    def start_by_hand(
        self, world_size: int, *arguments: str, overrides_of_rank: Mapping[int, Sequence[str]] = MappingProxyType({})
    ) -> list[Started]:
        """One process per rank, as a batch script does it."""
        common = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return [
            self.start(
                *arguments,
                *overrides_of_rank.get(rank, ()),
                environment=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world_size)
        ]

    def end(self) -> None:
        for started in self.started:
            with suppress(psutil.Error):
                for child in psutil.Process(started.process.pid).children(recursive=True):
                    with suppress(psutil.Error):
                        child.kill()
            started.process.kill()
            started.process.wait()


@contextmanager
def commands_in(directory: Path) -> Iterator[Commands]:
    commands = Commands(directory)
    try:
        yield commands
    finally:
        commands.end()


def write_config(config: RunConfig) -> str:
    """The configuration as a file beside the run's directory."""
    path = config.output_dir.with_suffix(".yaml")
    path.write_text(dump_config(config))
    return str(path)


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def own_lines(output: str) -> Sequence[str]:
    """What glmforge itself said: torchrun prints as well."""
    return [line for line in output.splitlines() if line.startswith("glmforge: ")]


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
