"""Imports of what is heavy, without a search for garbage meanwhile.

Importing PyTorch makes a million objects, all of which stay. Python's collector walks over them again and again while
they come, which takes a sixth of what a rank needs until its first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """No search for garbage within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
