"""What DeepSpeed says of this machine: its own report of compilers and of the operators that it can build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from glmforge.errors import HostError

_LIMIT_S = 180.0
"""It imports torch and asks a compiler about every operator."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def deepspeed_report() -> str:
    """The text of `ds_report`. Raises `HostError` if DeepSpeed is not installed, fails or gives no answer."""
    beside = Path(sys.executable).with_name("ds_report")
    program = str(beside) if beside.exists() else shutil.which("ds_report")
    if program is None:
        raise HostError("ds_report is not installed: pip install deepspeed, or leave --deepspeed out")
    try:
        done = subprocess.run(
            [program], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise HostError(f"{program} gave no answer within {_LIMIT_S:g} s: leave --deepspeed out") from None
    except OSError as error:
        raise HostError(f"{program} cannot be run: {error.strerror}: install deepspeed again") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HostError(f"{program} fails: {last}")
    return _COLOURS.sub("", done.stdout)
