"""Programs that a development cluster runs, the Debian packages that contain them, and whether hosts can have
namespaces here."""

import os
import shutil
import subprocess
from collections.abc import Callable

from glmforge.errors import HostError
from glmforge_ops.hosts.machines import printed_by

NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")

_NETWORK = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_SSH = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_SLURM = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
_ACCOUNTING = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}  # without what starts it at boot
_INSTALL_LIMIT_S = 1200


def needed(*, slurm: bool, accounting: bool, namespaces: bool, ssh: bool) -> dict[str, str]:
    """Program -> Debian package."""
    wanted = (_NETWORK if namespaces else {}) | (_SSH if ssh else {}) | (_SLURM if slurm else {})
    return wanted | (_ACCOUNTING if accounting else {})


def find(program: str) -> str | None:
    """Path of a program; daemons may be outside PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])
    return shutil.which(program, path=path)


def ensure(programs: dict[str, str], say: Callable[[str], None]) -> None:
    """Install what is missing if this is root on Debian. Raises `HostError` where that is not possible."""

    def missing() -> list[str]:
        return [program for program in programs if find(program) is None]

    if not missing():
        return
    packages = sorted({programs[program] for program in missing()})
    install = f"apt-get install {' '.join(packages)}"
    if os.geteuid() != 0 or find("apt-get") is None:
        raise HostError(f"missing: {', '.join(missing())}; install as root (Debian: {install})")
    say(f"installing {', '.join(packages)}")
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        printed_by(
            *("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", *command),
            environment=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            limit_s=_INSTALL_LIMIT_S,
            missing=install,
            otherwise=f"try it yourself: {install}",
        )
    if missing():
        raise HostError(f"still missing after '{install}': {', '.join(missing())}")


def namespaces_refusal() -> str | None:
    """Why this process may not make hosts in namespaces; None if it may."""
    if os.geteuid() != 0:
        return "you are not root"
    if find("unshare") is None:
        return "'unshare' is not installed"
    # `ip` may not be installed yet.
    attempt = ["ip", "link", "add", "one", "type", "veth", "peer", "name", "two"] if find("ip") else ["true"]
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", *attempt]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["unshare failed"])[-1] if done.returncode else None
