"""The C++ kernels of this folder as a shared library, compiled when they are first wanted.

They are plain C++ called with ctypes: without PyTorch's headers they compile in seconds rather than a minute, and fit
every version of PyTorch and Python. The library is made for this processor by the compiler found here ($CXX, else c++),
and kept under $XDG_CACHE_HOME/glmforge (else ~/.cache/glmforge), in a directory of the user's alone. Its name has three
hashes: of the sources, the options and the processor; of the compiler; and of its content, so that a file that is not
whole is made again. Without a compiler, one that any compiler made for this processor will do.

Two processes that start at once both compile, and the one that is done later puts the same file in the place of the
other's. So there is no lock, which one that was killed could leave behind (`torch.utils.cpp_extension.load` has one).
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401 - loaded before the library, which shares its OpenMP threads

from glmforge.files import make_private

logger = logging.getLogger(__name__)

_SOURCES = ("vectors.h", "matmul.h", "attention.h", "layers.h", "library.cpp")
_OPTIONS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-Wno-psabi")


_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
"""What /proc/cpuinfo says of a processor, on x86 and ARM, that -march=native may depend on."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels; None where they cannot be compiled, after a warning that says why."""
    try:
        return _loaded()
    except subprocess.CalledProcessError as error:
        reason = f"'{_compiler()}' failed: {(error.stderr.strip() or str(error)).splitlines()[0]}"
    except OSError as error:
        reason = str(error)
    logger.warning("native kernels unavailable: %s. Falling back to plain PyTorch, several times slower", reason)
    return None


def _loaded() -> ctypes.CDLL:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glmforge" / "native"
    try:
        make_private(cache)
    except OSError as error:
        logger.warning("native kernels: compiled for this process only: %s", error)
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(_compiled(Path(folder))))
    return ctypes.CDLL(str(_compiled(cache)))


def _compiled(folder: Path) -> Path:
    """The library's file in `folder`, compiled if it is not there."""
    here = Path(__file__).parent
    sources = [(here / name).read_text(encoding="utf-8") for name in _SOURCES]
    name = _hash(_processor(), *_OPTIONS, *sources)
    try:
        of_compiler = f"{name}-{_hash(_compiler(), _target())}"
        return _kept(folder, of_compiler) or _compile(here / "library.cpp", folder, of_compiler)
    except (OSError, subprocess.CalledProcessError):
        if (path := _kept(folder, name)) is not None:
            return path
        raise


def _kept(folder: Path, name: str) -> Path | None:
    """The file of this name that is as it was when it was made, if there is one; others are no library of glmforge."""
    for path in sorted(folder.glob(f"{name}-*.so")):
        found = path.lstat()
        is_ours = found.st_uid in {os.geteuid(), 0} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_ours and stat.S_ISREG(found.st_mode) and path.stem.endswith(f"-{_hash(path.read_bytes())}"):
            return path
    return None


def _compile(source: Path, folder: Path, name: str) -> Path:
    logger.info("native kernels: compiling once, takes some seconds")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "library.so"
        command = [*shlex.split(_compiler()), *_OPTIONS, "-shared", "-fPIC", str(source), "-o", str(made)]
        subprocess.run(command, capture_output=True, text=True, check=True)
        made.chmod(0o700)
        return made.replace(folder / f"{name}-{_hash(made.read_bytes())}.so")


def _compiler() -> str:
    return os.environ.get("CXX", "").strip() or "c++"


def _target() -> str:
    """What the compiler says of itself and of the processor. Raises `OSError` if none is found."""
    words = shlex.split(_compiler())
    if shutil.which(words[0]) is None:
        raise FileNotFoundError(f"C++ compiler '{_compiler()}' not found; install g++, or set CXX")
    describe = [*words, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    return subprocess.run(describe, capture_output=True, text=True, check=True).stdout


def _processor() -> str:
    """What this processor is, and what it can do."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _PROCESSOR]
    return "\n".join([platform.machine(), *lines])


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return digest.hexdigest()[:24]
