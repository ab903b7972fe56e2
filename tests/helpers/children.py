"""Processes that a test has started with multiprocessing, and not those that earlier tests have left to later ones."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess


def children_from_now_on() -> Callable[[], list[BaseProcess]]:
    """Tells, when it is called, which processes have been started since, and run."""
    others = multiprocessing.active_children()
    return lambda: [process for process in multiprocessing.active_children() if process not in others]
