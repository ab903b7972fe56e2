"""Which code a run measured, told by the files themselves: a machine that only measures has no repository."""

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/glmforge", "benchmarks/gpu")


def source_digest() -> str:
    """SHA-256 of all Python files and presets below `FOLDERS`, with their names."""
    digest = hashlib.sha256()
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".yaml"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()
