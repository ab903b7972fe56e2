"""The one place that makes an ssh command line, and that explains why ssh did not get through.

ssh never prompts (`BatchMode`) and accepts only known host keys (`StrictHostKeyChecking=yes`): both are given on the
command line, where they win over configuration files. `glmforge cluster setup` makes keys known. No agent, no X11 and
no port is forwarded: a node that has been taken over must not reach further.

Commands for a remote shell are quoted here, once.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from glmforge.errors import HostError
from glmforge.files import shown

UNREACHABLE = 255
"""What ssh ends with if it is not the command that failed."""

_ALWAYS = (
    "-a",
    "-x",
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", "StrictHostKeyChecking=yes"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=4"),
)

# First match wins: what ssh prints, its meaning and the fix.
_REASONS = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one that is known",
     "find out why (a new machine, or another one in its place), then 'ssh-keygen -R HOST' and glmforge cluster setup"),
    ("Host key verification failed", "its host key is not known",
     "compare it and add it to known_hosts: glmforge cluster setup"),
    ("host key is known for", "its host key is not known",
     "compare it and add it to known_hosts: glmforge cluster setup"),
    ("Can't open user config file", "ssh's configuration is not there", "put it on storage that all nodes see"),
    ("Permission denied", "it refuses the key", "add the public key there: glmforge cluster setup"),
    ("Could not resolve hostname", "its name is not known", "add it to DNS or /etc/hosts, or correct the hostfile"),
    ("Connection refused", "no ssh server answers", "start sshd there, or give ssh.port"),
    ("No route to host", "there is no route to it", "look at the node's power, its link and the network"),
    ("Network is unreachable", "there is no route to it", "look at the node's power, its link and the network"),
    ("timed out", "it does not answer", "look at the node's power, its link and the network"),
    ("Connection closed", "it closes the connection", "look at sshd's log there: MaxStartups, /etc/hosts.deny"),
    ("Connection reset", "it closes the connection", "look at sshd's log there: MaxStartups, /etc/hosts.deny"),
    ("Bad owner or permissions", "ssh refuses its configuration", "chmod 600 the file that ssh names"),
    ("UNPROTECTED PRIVATE KEY", "ssh refuses the key, which others can read", "chmod 600 the private key"),
)  # fmt: skip


@dataclass(frozen=True)
class Ssh:
    """How machines are reached.

    Attributes:
        command: ssh itself, perhaps with options of the user's own: ("ssh", "-F", "cluster.conf").
        user, port, identity, known_hosts: None leaves each to ssh's configuration.
        connect_timeout_s: until a host that does not answer is given up.
    """

    command: tuple[str, ...] = ("ssh",)
    user: str | None = None
    port: int | None = None
    identity: Path | None = None
    known_hosts: Path | None = None
    connect_timeout_s: int = 20

    @classmethod
    def of_command(cls, text: str) -> Self:
        """As a user gives it: "ssh -F cluster.conf". Raises `HostError`."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise HostError(f"--ssh {shown(text)}: not a command ({error}); write it as in a shell") from None
        if not words:
            raise HostError("--ssh: names no command; leave it out for 'ssh'")
        return cls(tuple(words))

    @property
    def options(self) -> list[str]:
        """Everything between the command and the host. Paths are absolute, since ssh knows no working directory."""
        options = [*_ALWAYS, "-o", f"ConnectTimeout={self.connect_timeout_s}"]
        if self.user is not None:
            options += ["-l", self.user]
        if self.port is not None:
            options += ["-p", str(self.port)]
        if self.identity is not None:
            options += ["-o", "IdentitiesOnly=yes", "-i", str(self.identity.absolute())]
        if self.known_hosts is not None:
            options += ["-o", f"UserKnownHostsFile={_quoted(self.known_hosts.absolute())}"]
        return options

    def call(self) -> str:
        """The command with its options, as rsync and mpirun want it: one string for a shell."""
        return shlex.join([*self.command, *self.options])

    def to(self, host: str, *words: str) -> list[str]:
        """The command line that runs the program `words` on `host`; no shell there takes a word apart."""
        return self.to_shell(host, shlex.join(words))

    def to_shell(self, host: str, script: str) -> list[str]:
        """The command line that has a POSIX shell of `host` run `script`, not the user's login shell."""
        return [*self.command, *self.options, "--", host, f"sh -c {shlex.quote(script)}"]


def unreachable(host: str, stderr: str) -> str:
    """One line for users, from what ssh printed before it ended with `UNREACHABLE`."""
    return "{}: {}; {}".format(host, *explain_unreachable(stderr))


def explain_unreachable(stderr: str) -> tuple[str, str]:
    """What was wrong, in words, and the fix; for what ssh printed before it ended with `UNREACHABLE`."""
    for printed, meaning, fix in _REASONS:
        if printed in stderr:
            return meaning, fix
    return last_line(stderr) or "no reason given", "try 'ssh -v HOST true'"


def last_line(text: str) -> str:
    """The last line that says something, without what could steer a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return re.sub(r"[^\x20-\x7e]", "?", lines[-1])[:300] if lines else ""


def _quoted(path: Path) -> str:
    """As ssh's options want a path: one with spaces in quotes, % doubled."""
    return '"' + str(path).replace("%", "%%") + '"'
