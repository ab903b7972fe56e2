"""How a process of the command line ends."""

import atexit
import os
import sys
import threading

import pytest
import torch.distributed as dist

from glmforge.__main__ import main
from glmforge.cli import app
from glmforge.runtime import meeting
from glmforge.runtime.launch import LaunchEnvironment
from helpers.distributed import free_port


class EndedAtOnceError(Exception):
    """In place of the end of this process, without an interpreter that ends."""


@pytest.fixture(autouse=True)
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called at the end, in order."""
    called: list[str] = []

    def end(status: int) -> None:
        called.append(f"exit {status}")
        raise EndedAtOnceError

    monkeypatch.setattr(meeting, "_met", threading.Event())
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: called.append("atexit"))
    monkeypatch.setattr(os, "_exit", end)
    return called


@pytest.mark.parametrize(("given", "status"), [(None, 0), (75, 75), ("a message", 1)])
def test_a_rank_ends_while_gloo_s_threads_still_hold_tensors(
    monkeypatch: pytest.MonkeyPatch, ends: list[str], given: str | int | None, status: int
) -> None:
    """They abort a process whose interpreter ends around them."""
    stores: list[dist.Store] = []

    def work() -> None:
        launch = LaunchEnvironment(address="127.0.0.1", port=free_port())
        stores.append(meeting.open_store(launch, wait_s=60, timeout_s=60))
        sys.exit(given)

    monkeypatch.setattr(app, "main", work)
    with pytest.raises(EndedAtOnceError):
        main()
    assert ends == ["atexit", f"exit {status}"]


def test_other_processes_end_as_any(monkeypatch: pytest.MonkeyPatch, ends: list[str]) -> None:
    monkeypatch.setattr(app, "main", lambda: sys.exit(3))
    with pytest.raises(SystemExit):
        main()
    assert ends == []
