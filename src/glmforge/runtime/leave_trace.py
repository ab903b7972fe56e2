"""A note on the node of which process works there, so that what it leaves behind when it is killed can be told as its.

See `glmforge.runtime.traces`; `glmforge cluster clean` reads it.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from glmforge.runtime.process import identify, this_process
from glmforge.runtime.traces import directory_of_traces, is_private

logger = logging.getLogger(__name__)

ABOVE = Path("/tmp")
"""Not the user's TMPDIR: whoever cleans must find it."""


@contextmanager
def leave_trace(what: str, run: Path) -> Iterator[None]:
    """Note within the block that this process does `what` for `run`. Where that is not possible, there is no note."""
    file = _write(what, run)
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                file.unlink()


def scratch_prefix(purpose: str) -> str:
    """Of the name of a temporary directory: whose it is, to whoever finds it when this process is gone."""
    me = this_process()
    return f"glmforge-{purpose}-{me.boot[:8]}-{re.sub(r'[^0-9]', '', me.namespace)}-{me.pid}-{me.began}-"


def _write(what: str, run: Path) -> Path | None:
    me = this_process()
    directory = directory_of_traces(ABOVE)
    file = directory / f"{me.pid}-{me.began}.json"
    launcher = None
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun ends its ranks when it ends; one that is left was forgotten
        parent = identify(os.getppid())
        launcher = {"pid": parent.pid, "began": parent.began}
    note = me.model_dump() | {
        "what": what,
        "run": str(run.absolute()),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "launcher": launcher,
    }
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if not is_private(directory):
            return None
        file.write_text(json.dumps(note), encoding="utf-8")
    except OSError as error:
        logger.debug("%s: cannot be written (%s)", file, error.strerror)
        return None
    return file
