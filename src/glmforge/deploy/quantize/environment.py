"""The Python that quantisers run in: an environment of its own for each, made on first use.

llm-compressor pins versions of transformers that a training environment need not have, and llama.cpp is compiled. So
neither is an extra of glmforge. An environment is a venv below the user's cache directory, named by its pinned packages
and used again as long as they are the same; pip finds packages as it is configured to. Where nothing can be installed,
pass the Python of an environment that has them.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from glmforge.errors import GlmforgeError

logger = logging.getLogger(__name__)

REQUIREMENTS = {
    "llm-compressor": ("llmcompressor==0.14.0.1", "compressed-tensors==0.19.0", "transformers==5.17.0"),
    "llama.cpp": ("llama-cpp-python==0.3.36",),
}
"""Besides torch, which llm-compressor gets in the version that runs glmforge."""


def environment_python(name: str) -> Path:
    """The Python of the environment `name`, one of `REQUIREMENTS`, made now if there is none. Raises `GlmforgeError` if
    it cannot be made."""
    torch = (f"torch=={version('torch').partition('+')[0]}",) if name == "llm-compressor" else ()
    packages = (*torch, *REQUIREMENTS[name])
    digest = hashlib.sha256("\n".join([sys.version, *packages]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "glmforge" / "quantize" / f"{name}-{digest}"
    python, ready = directory / "bin" / "python", directory / "ready"
    if not ready.exists():
        logger.info("%s: installing %s; this takes minutes, once", directory, ", ".join(packages))
        shutil.rmtree(directory, ignore_errors=True)  # of an installation that was interrupted
        failure, fix = f"the environment for {name} was not made", "pass --python of one that has these packages"
        run([sys.executable, "-m", "venv", str(directory)], failure, fix)
        run([str(python), "-m", "pip", "install", "--quiet", *packages], failure, fix)
        ready.touch()
    return python


def run(command: list[str], failure: str, fix: str) -> None:
    """Carry out a command. Raises `GlmforgeError` with the last lines of its output if it fails."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise GlmforgeError(f"{failure}: {command[0]}: {error.strerror}; {fix}") from error
    if done.returncode != 0:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise GlmforgeError(f"{failure} (exit status {done.returncode}): {' | '.join(said[-5:])}; {fix}")
