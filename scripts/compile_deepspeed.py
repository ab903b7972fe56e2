"""Compile DeepSpeed's operators for a CPU, one after the other, before tests that use them run side by side.

    TORCH_EXTENSIONS_DIR=.venv/torch_extensions python scripts/compile_deepspeed.py

DeepSpeed compiles an operator when a run first needs it, for minutes. A test that ends a rank meanwhile, because it has
been waiting for so long, leaves a file `lock`, for which every later build waits without an end. What an earlier call
left unfinished is removed here.
"""

import os
import shutil
import subprocess
from pathlib import Path

from deepspeed.accelerator import get_accelerator

OPERATORS = ("ShareMemCommBuilder", "CPUAdamBuilder", "FusedAdamBuilder", "AsyncIOBuilder", "PinMemoryBuilder")


def main() -> None:
    install_libaio()
    for lock in Path(os.environ["TORCH_EXTENSIONS_DIR"]).glob("*/lock"):
        lock.unlink()
    for name in OPERATORS:
        builder = get_accelerator().create_op_builder(name)
        if builder.is_compatible(verbose=False):  # asynchronous I/O needs libaio
            builder.load(verbose=False)


def install_libaio() -> None:
    """For files on NVMe, where that is allowed; without it tests of these are skipped."""
    if not Path("/usr/include/libaio.h").exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "libaio-dev"]):
            subprocess.run(["apt-get", "-qq", *command], check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
