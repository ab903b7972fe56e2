"""Where copies of files from shared storage lie on a node's own disk: the same for runs that copy and for staging."""

import hashlib
from pathlib import Path

CACHE_LOCK = ".lock"
"""In the directory above all copies: whoever copies holds it (flock)."""


def place_for(directory: Path, cache_dir: Path) -> Path:
    """Where copies of the files of `directory` lie. Files of one name from different directories are kept apart."""
    return cache_dir / place_name(directory)


def place_name(directory: Path) -> str:
    """The name of that place in any cache directory."""
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:12]
