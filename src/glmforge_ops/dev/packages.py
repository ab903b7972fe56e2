"""Programs that a development cluster runs, and the Debian packages they come in."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from glmforge.errors import HostError

_NETWORK = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_SSH = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
# The server without what starts it when the machine starts.
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
CLOCK = {"faketime": "faketime"}

_INSTALL_LIMIT_S = 1200


def needed(*, slurm: bool, accounting: bool, namespaces: bool, ssh: bool) -> dict[str, str]:
    """Program -> Debian package."""
    wanted = (_NETWORK if namespaces else {}) | (_SSH if ssh else {}) | (_SLURM if slurm else {})
    return wanted | (_ACCOUNTING if accounting else {})


def find(program: str) -> str | None:
    """Path of a program; daemons are not on everybody's PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


def ensure(programs: dict[str, str], say: Callable[[str], None]) -> None:
    """Have these programs: installed, which is said, where that is allowed. Raises `HostError` where it is not."""
    missing = [program for program in programs if find(program) is None]
    if not missing:
        return
    packages = sorted({programs[program] for program in missing})
    mend = f"apt-get install {' '.join(packages)}"
    if os.geteuid() != 0:
        raise HostError(f"missing: {', '.join(missing)}; install them as root: {mend}")
    if find("apt-get") is None:
        raise HostError(
            f"missing: {', '.join(missing)}; install them, in Debian they are in the packages {', '.join(packages)}"
        )
    say(f"installing {', '.join(packages)}")
    _install(packages, mend)
    if missing := [program for program in programs if find(program) is None]:
        raise HostError(f"missing: {', '.join(missing)}, also after '{mend}'")


def ensure_hosts_file(say: Callable[[str], None], file: Path = Path("/etc/hosts")) -> None:
    """Have the file that each host gets one of its own in the place of; the barest of systems have none."""
    if not file.exists():
        say(f"making an empty {file}, which this machine lacks")
        file.touch(mode=0o644)


def _install(packages: Iterable[str], mend: str) -> None:
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        try:
            done = subprocess.run(
                [*apt, *command],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSTALL_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostError(f"'{mend}' has not ended in {_INSTALL_LIMIT_S} s; run it by hand") from None
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise HostError(f"'{mend}' fails: {said[-1] if said else 'no reason given'}")
