"""Several transfers at once: an interrupt that does not wake the thread that waits for them ends them nevertheless."""

import os
from pathlib import Path

import pytest

from helpers.unwoken import run_program

_PROGRAM = """
import signal, subprocess, threading
from glmforge.checkpoint.node_local.transfer import Host, Transfers

transfers, started = Transfers(), threading.Barrier(2)

def transfer(host):
    with transfers.process(["sleep", "100"], subprocess.DEVNULL, subprocess.DEVNULL) as child:
        print(f"{child.pid} ", end="")  # in one piece: both threads print
        started.wait()
        if host.name == "last":
            signal_without_waking(signal.SIGINT)
        child.stdout.read()

try:
    transfers.for_each(transfer, [Host(name, transfers) for name in ("first", "last")])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_does_not_wake_the_main_thread_ends_transfers(tmp_path: Path) -> None:
    done = run_program(_PROGRAM, tmp_path)
    *children, said = done.stdout.split()
    assert (said, len(children), done.stderr) == ("interrupted", 2, "")
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
