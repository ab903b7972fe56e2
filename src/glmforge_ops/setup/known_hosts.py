"""The cluster's own key, and the host keys of its machines: what is known, what is new, and who accepted it.

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
_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_HOST_KEY = re.compile(rf"({'|'.join(_TYPES)}) [A-Za-z0-9+/]{{32,4096}}={{0,3}}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_AT_ONCE = 16
_MAX_BYTES = 16 << 20


@dataclass(frozen=True)
class Place:
    """Where ssh looks for a machine, and under which name it looks for its key: `lookup`, by an alias or as usual.

    `user`: the account there, if it has another name than here; `through`: a jump host or command that leads there.
    """

    host: str
    address: str
    port: int
    lookup: str
    alias: str = ""
    user: str = ""
    files: tuple[str, ...] = ()
    through: str = ""


@dataclass(frozen=True)
class HostKey:
    """A key that a machine showed; `key` is its type and content as in a known_hosts file."""

    host: str
    key: str

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen shows it: SHA256:..."""
        content = base64.b64decode(self.key.split()[1])
        return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")

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
        new: keys that nobody has accepted.
        refused: hosts that must not be asked, and why.
    """

    own: str = ""
    added: dict[str, str] = field(default_factory=dict)
    new: list[HostKey] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Of the cluster's own known_hosts from now on."""
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
        raise HostError(f"{shown(file)}: holds no fingerprint; give lines of a host and its fingerprint")
    return accepted


def places_of(ssh: Ssh, hosts: Sequence[str]) -> list[Place]:
    """Where ssh's configuration leads for each host; nothing is connected to. Raises `HostError`."""

    here = pwd.getpwuid(os.getuid()).pw_name

    def find(host: str) -> Place:
        said = _run(*ssh.command, *ssh.options, "-G", "--", host, check=False)
        found: dict[str, str] = {}
        for line in said.splitlines():
            found.setdefault(*line.partition(" ")[::2])
        address, port = found.get("hostname", ""), found.get("port", "")
        if not _NAME.fullmatch(address) or not port.isdecimal():
            raise HostError(f"{host}: ssh's configuration gives no address for it; try 'ssh -G {host}'")
        alias, user = (_name(found.get(name, "")) for name in ("hostkeyalias", "user"))
        lookup = (alias or (address if port == "22" else f"[{address}]:{port}")).lower()
        files = (found.get("userknownhostsfile", "") + " " + found.get("globalknownhostsfile", "")).split()
        jumps = [found[name] for name in ("proxyjump", "proxycommand") if found.get(name, "none") != "none"]
        user = "" if user == here else user
        return Place(host, address, int(port), lookup, alias, user, tuple(files), "".join(jumps[:1]))

    return list(map_in_threads(find, hosts, _AT_ONCE))


def find_trust(
    places: Sequence[Place],
    own: Path,
    accepted: Mapping[str, set[str]],
    confirm: Callable[[Sequence[HostKey]], bool] | None,
) -> Trust:
    """What is known of every machine's key. `own`: the cluster's file; `confirm`: asked about keys nobody accepted."""
    there = kind_of(own, error=HostError) is not None
    trust = Trust(read_text(own, error=HostError, max_bytes=_MAX_BYTES) if there else "")

    def look(place: Place) -> tuple[list[str], list[str], list[HostKey]]:
        kept = _known(place, [str(own)])
        known = [] if kept else _known(place, place.files)
        return kept, known, [] if kept or known else _scan(place)

    for place, (kept, known, scanned) in zip(places, map_in_threads(look, places, _AT_ONCE), strict=True):
        good = [key.key for key in scanned if key.fingerprint in accepted.get(place.host, ())]
        if known or good:
            trust.added[place.host] = "".join(f"{place.lookup} {key}\n" for key in known or good)
        if kept or known or good:
            continue
        if not scanned:
            trust.refused[place.host] = "it shows no host key; look at its power, its network and its ssh server"
        elif place.host in accepted:
            shows = ", ".join(key.fingerprint for key in scanned)
            trust.refused[place.host] = f"it shows {shows}, which is not what is accepted; find out why"
        else:
            trust.new.append(scanned[0])
    if trust.new and confirm is not None and confirm(trust.new):
        lookups = {place.host: place.lookup for place in places}
        trust.added |= {key.host: f"{lookups[key.host]} {key.key}\n" for key in trust.new}
        trust.new = []
    fix = "compare its fingerprint with what the machine itself says, and give --accept-host-keys FILE"
    trust.refused |= {key.host: f"its host key is not known; {fix}" for key in trust.new}
    return trust


def _known(place: Place, files: Sequence[str]) -> list[str]:
    """Keys that known_hosts files have for it, also under hashed names."""
    keys: dict[str, None] = {}
    for file in files:
        said = _run("ssh-keygen", "-F", place.lookup, "-f", file, check=False) if Path(file).is_file() else ""
        for line in said.splitlines():
            if found := _HOST_KEY.match(line.partition(" ")[2]):  # not after @revoked or @cert-authority
                keys[found[0]] = None
    return list(keys)


def _scan(place: Place) -> list[HostKey]:
    """The keys that it shows to whoever asks, the preferred type first."""
    types = "ed25519,ecdsa,rsa"
    said = _run("ssh-keyscan", "-T", "10", "-p", str(place.port), "-t", types, "--", place.address, check=False)
    found = [match[0] for line in said.splitlines() if (match := _HOST_KEY.fullmatch(line.partition(" ")[2].strip()))]
    return [HostKey(place.host, key) for key in sorted(found, key=lambda key: _TYPES.index(key.split()[0]))]


def _name(text: str) -> str:
    return text if text != "none" and _NAME.fullmatch(text) else ""


def _run(*command: str, check: bool = True) -> str:
    """What a program of OpenSSH prints. Raises `HostError`."""
    return printed_by(*command, limit_s=60, missing="install OpenSSH's client, or correct --ssh", check=check)
