"""The cluster's own pair of keys, made by ssh-keygen in a directory that only its owner can read."""

import re
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import kind_of, read_text, shown

NAME = "id_ed25519"
_LIMIT_S = 60
_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{60,80}={0,2}")


@dataclass(frozen=True)
class KeyPair:
    """Both keys as files have them; `private` is None if it is there already."""

    public: str
    private: str | None = None

    @property
    def authorized(self) -> str:
        """The line that lets it in: commands and terminals, but no forwarding to other machines."""
        return f"restrict,pty {self.public.strip()}"


def find_or_make_keys(directory: Path, comment: str) -> KeyPair:
    """The pair in `directory`, or a new one that is nowhere yet. Raises `HostError`."""
    private = directory / NAME
    if kind_of(private, error=HostError) is None:
        return make_keys(comment)
    mode = stat.S_IMODE(private.stat().st_mode)
    if mode & 0o077:
        raise HostError(
            f"{shown(private)}: others can read this private key (mode {mode:04o}); remove it together with its .pub, "
            "and run again for a new one"
        )
    if kind_of(private.with_suffix(".pub"), error=HostError) is not None:
        public = read_text(private.with_suffix(".pub"), error=HostError, max_bytes=1 << 14)
    else:
        public = _keygen("-y", "-P", "", "-f", str(private.absolute()))
    if not _PUBLIC.match(public):
        raise HostError(f"{shown(private)}.pub: is no ed25519 public key; remove the pair, and run again for a new one")
    return KeyPair(public)


def make_keys(comment: str) -> KeyPair:
    """A new pair. Raises `HostError`."""
    with tempfile.TemporaryDirectory(prefix="glmforge-key-") as directory:  # mode 0700
        Path(directory).chmod(0o700)
        file = Path(directory, NAME)
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file))
        return KeyPair(file.with_suffix(".pub").read_text(), file.read_text())


def _keygen(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except OSError as error:
        raise HostError(f"'ssh-keygen' cannot be started: {error.strerror}; install OpenSSH's client") from None
    if done.returncode != 0:
        raise HostError(f"ssh-keygen fails: {shown(done.stderr.strip())}")
    return done.stdout
