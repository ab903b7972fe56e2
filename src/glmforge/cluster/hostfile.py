"""Names of machines: as an option gives them, or one per line of a hostfile as mpirun and DeepSpeed read it."""

import re
from pathlib import Path

from glmforge.errors import HostError


def parse_hosts(names: str) -> list[str]:
    """Names separated by commas."""
    return _checked([name.strip() for name in names.split(",") if name.strip()], "--hosts")


def read_hostfile(file: Path) -> list[str]:
    """One host per line; what follows the name (`slots=8`) and comments are ignored."""
    try:
        lines = [line.split("#")[0].split() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"{file}: cannot be read ({error}); give a file with one host per line") from error
    return _checked([words[0] for words in lines if words], str(file))


def _checked(names: list[str], origin: str) -> list[str]:
    if not names:
        raise HostError(f"{origin}: names no host")
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:@%-]*", name):
            raise HostError(
                f"{origin}: '{name}' is not the name of one host; 'scontrol show hostnames' expands Slurm's lists"
            )
    return list(dict.fromkeys(names))
