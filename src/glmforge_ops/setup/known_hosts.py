"""The cluster's own key, and the host keys of its machines: which are known, which are new, which the user accepted.

A host key is trusted if the cluster's own file or ssh's configuration knows it, or if the user gave its fingerprint or
confirmed it. What `ssh-keyscan` collects is shown, never believed. A machine whose key is not the known one is refused
by ssh itself.
"""

import base64
import hashlib
import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import kind_of, read_text, shown
from glmforge.runtime.hostfile import expand_hosts
from glmforge.runtime.ssh import Ssh
from glmforge.runtime.waiting import map_in_threads
from glmforge_ops.hosts.machines import printed_by

KEY = "id_ed25519"
_HOST_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp\d+|ssh-rsa) [A-Za-z0-9+/]{32,4096}={0,3}")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_AT_ONCE = 16
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where ssh looks for a machine, and in which `files` for its key, under its `alias` if it has one.

    `user`: the account there, if it has another name than here.
    """

    host: str
    address: str
    port: int
    user: str = ""
    files: tuple[str, ...] = ()
    alias: str = ""

    @property
    def name(self) -> str:
        """In known_hosts files."""
        return self.alias or (self.address if self.port == 22 else f"[{self.address}]:{self.port}").lower()


@dataclass(frozen=True)
class HostKey:
    """A key that a machine showed; `key` is its type and content as in a known_hosts file."""

    host: str
    key: str

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen shows it: SHA256:..."""
        digest = hashlib.sha256(base64.b64decode(self.key.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def shown(self) -> str:
        """As a file of accepted fingerprints has it."""
        return f"{self.host} {self.fingerprint} ({self.key.split()[0].removeprefix('ssh-')})"


@dataclass
class Trust:
    """What is known of the machines' keys.

    Attributes:
        own: the text of the cluster's own known_hosts.
        added: lines to be added to it, by host.
        new: keys that the user has not accepted.
        refused: hosts that must not be asked, and why.
    """

    own: str = ""
    added: dict[str, str] = field(default_factory=dict)
    new: list[HostKey] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The cluster's own known_hosts from now on."""
        return self.own + "".join(self.added.values())


def own_key(directory: Path, *, make: bool, comment: str = "") -> str | None:
    """The line of `authorized_keys` for the cluster's key: commands and terminals, but no forwarding.

    None if there is no key and `make` is not set. Raises `HostError`.
    """
    private = directory / KEY
    if kind_of(private, error=HostError) is None:
        if not make:
            return None
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(private))
    try:
        return "restrict,pty " + _run("ssh-keygen", "-y", "-P", "", "-f", str(private)).strip()
    except HostError as error:
        raise HostError(f"{shown(private)}: {error}; remove it with its .pub, and run again for a new one") from None


def read_accepted(file: Path) -> dict[str, set[str]]:
    """Fingerprints by host: lines of `node[001-128] SHA256:...`, the rest of a line is comment. Raises `HostError`."""
    accepted: dict[str, set[str]] = {}
    for number, line in enumerate(read_text(file, error=HostError, max_bytes=_MAX_BYTES).splitlines(), start=1):
        words, origin = line.split("#")[0].split(), f"{shown(file)}:{number}"
        if words and (len(words) < 2 or not _FINGERPRINT.fullmatch(words[1])):
            raise HostError(f"{origin}: must be a host or range and its fingerprint: node001 SHA256:...")
        for host in expand_hosts(words[:1], origin) if words else []:
            accepted.setdefault(host, set()).add(words[1])
    if not accepted:
        raise HostError(f"{shown(file)}: has no fingerprint; give lines of a host and its fingerprint")
    return accepted


def places_of(ssh: Ssh, hosts: Sequence[str]) -> list[Place]:
    """Where ssh's configuration leads for each host; nothing is connected to. Raises `HostError`."""
    here = pwd.getpwuid(os.getuid()).pw_name

    def find(host: str) -> Place:
        found: dict[str, str] = {}
        for line in _run(*ssh.command, *ssh.options, "-G", "--", host, check=False).splitlines():
            found.setdefault(*line.partition(" ")[::2])
        address, port = found.get("hostname", ""), found.get("port", "")
        if not address or not port.isdecimal():
            raise HostError(f"{host}: ssh's configuration gives no address for it; try 'ssh -G {host}'")
        user, alias = found.get("user", here), found.get("hostkeyalias", "none").lower()
        alias = "" if alias == "none" else alias
        files = (found.get("userknownhostsfile", "") + " " + found.get("globalknownhostsfile", "")).split()
        return Place(host, address, int(port), "" if user == here else user, tuple(files), alias)

    return list(map_in_threads(find, hosts, _AT_ONCE))


def find_trust(
    places: Sequence[Place],
    own: Path,
    accepted: Mapping[str, set[str]],
    confirm: Callable[[Sequence[HostKey]], bool] | None,
) -> Trust:
    """What is known of every machine's key. `own`: the cluster's file; `confirm`: asked about new keys."""
    exists = kind_of(own, error=HostError) is not None
    trust = Trust(read_text(own, error=HostError, max_bytes=_MAX_BYTES) if exists else "")

    def look(place: Place) -> tuple[bool, list[str], list[HostKey]]:
        if _known(place.name, [str(own)]):
            return True, [], []
        known = _known(place.name, place.files)
        return False, known, [] if known else _scan(place)

    for place, (is_kept, known, scanned) in zip(places, map_in_threads(look, places, _AT_ONCE), strict=True):
        good = known or [key.key for key in scanned if key.fingerprint in accepted.get(place.host, ())]
        if is_kept or good:
            trust.added[place.host] = "".join(f"{place.name} {key}\n" for key in good)
        elif not scanned:
            trust.refused[place.host] = "it shows no host key; look at its power, its network and its ssh server"
        elif place.host in accepted:
            shows = ", ".join(key.fingerprint for key in scanned)
            trust.refused[place.host] = f"it shows {shows}, which is not what is accepted; find out why"
        else:
            trust.new.append(scanned[0])
    if trust.new and confirm is not None and confirm(trust.new):
        names = {place.host: place.name for place in places}
        trust.added |= {key.host: f"{names[key.host]} {key.key}\n" for key in trust.new}
        trust.new = []
    fix = "compare its fingerprint with what the machine itself says, and give --accept-host-keys FILE"
    trust.refused |= {key.host: f"its host key is not known; {fix}" for key in trust.new}
    return trust


def _known(name: str, files: Sequence[str]) -> list[str]:
    """Keys that known_hosts files have for a name, also if it is hashed there."""
    said = [_run("ssh-keygen", "-F", name, "-f", file, check=False) for file in files if Path(file).is_file()]
    rows = [line.partition(" ")[2] for line in "".join(said).splitlines()]  # not after @revoked or @cert-authority
    return list(dict.fromkeys(match[0] for row in rows if (match := _HOST_KEY.match(row))))


def _scan(place: Place) -> list[HostKey]:
    """The keys that it shows to everyone, the preferred type first."""
    command = ("ssh-keyscan", "-T", "10", "-p", str(place.port), "-t", "ed25519,ecdsa,rsa", "--", place.address)
    rows = [line.partition(" ")[2].strip() for line in _run(*command, check=False).splitlines()]
    keys = [row for row in rows if _HOST_KEY.fullmatch(row)]
    return [HostKey(place.host, key) for key in sorted(keys, key=lambda key: "ed25519" not in key)]


def _run(*command: str, check: bool = True) -> str:
    """What a program of OpenSSH prints. Raises `HostError`."""
    return printed_by(*command, limit_s=60, missing="install OpenSSH's client, or correct --ssh", check=check)
