"""The C++ kernels of this folder as a shared library, compiled when they are first wanted.

They are plain C++ called with ctypes: without PyTorch's headers they compile in seconds rather than a minute, and fit
every version of PyTorch and Python. The library is made for this processor by the compiler found here ($CXX, else c++),
and kept under $XDG_CACHE_HOME/glmforge (else ~/.cache/glmforge) by a name that stands for all it depends on: the
sources, the options, and what the compiler says of itself and of the processor.

Two processes that start at once both compile, and the one that is done later puts the same file in the place of the
other's. So there is no lock, which one that was killed could leave behind (`torch.utils.cpp_extension.load` has one).
"""

import ctypes
import functools
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401 - loaded before the library, which shares its OpenMP threads

logger = logging.getLogger(__name__)

_SOURCES = ("vectors.h", "matmul.h", "attention.h", "layers.h", "library.cpp")
_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-Wno-psabi")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels; None where they cannot be compiled, after a warning that says why."""
    compiler = os.environ.get("CXX") or "c++"
    try:
        if shutil.which(shlex.split(compiler)[0]) is not None:
            return ctypes.CDLL(str(_compiled(compiler)))
        reason = f"there is no C++ compiler '{compiler}'; install g++, or name one in CXX"
    except subprocess.CalledProcessError as error:
        reason = f"'{compiler}' failed: {(error.stderr.strip() or str(error)).splitlines()[0]}"
    except OSError as error:
        reason = str(error)
    logger.warning("native kernels: %s. Plain PyTorch generates instead, several times slower", reason)
    return None


def _compiled(compiler: str) -> Path:
    """The library's file, compiled if it is not there."""
    folder = Path(__file__).parent
    describe = [*shlex.split(compiler), "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    target = subprocess.run(describe, capture_output=True, text=True, check=True).stdout
    sources = [(folder / name).read_text(encoding="utf-8") for name in _SOURCES]
    key = hashlib.sha256("\0".join([compiler, target, *_OPTIONS, *sources]).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glmforge" / "native"
    path = cache / f"{key}.so"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    logger.info("native kernels: compiling, which takes some seconds and is done once")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / path.name
        command = [*shlex.split(compiler), *_OPTIONS, "-shared", "-fPIC", str(folder / "library.cpp"), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        made.replace(path)
    return path
