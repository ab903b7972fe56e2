"""Host keys: what is known already, what is new, and who said that it may be trusted.

A key is trusted if the cluster's own file or ssh's configuration knows it, or if the user gave its fingerprint or
confirmed it. Nothing else makes it known: what `ssh-keyscan` collects is shown, never believed. A machine whose key is
not the known one is refused by ssh itself, and named.

The cluster's file holds hashed names (ssh_config's HashKnownHosts), so that it does not tell a thief where to go.
"""

import base64
import binascii
import hashlib
import hmac
import os
import pwd
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from glmforge.errors import HostError
from glmforge.files import read_text, shown
from glmforge.runtime.hostfile import expand_hosts
from glmforge.runtime.ssh import Ssh
from glmforge.runtime.threads import map_in_threads

KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_KEY = re.compile(rf"(?:{'|'.join(KEY_TYPES)}) [A-Za-z0-9+/]{{32,4096}}={{0,3}}")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:%-]{0,254}")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_PROXIES = ("proxyjump", "proxycommand")
_SCAN_LIMIT_S = 10
_RUN_LIMIT_S = 600
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

    place: Place
    key: str

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.key)

    @property
    def line(self) -> str:
        """For a known_hosts file, with a hashed name."""
        salt = os.urandom(20)
        digest = hmac.digest(salt, self.place.lookup.encode(), "sha1")
        return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()} {self.key}"

    @property
    def shown(self) -> str:
        """As a file of accepted fingerprints has it."""
        return f"{self.place.host} {self.fingerprint} ({self.key.split()[0].removeprefix('ssh-')})"


@dataclass
class Trust:
    """What is known of the machines' keys.

    Attributes:
        lines: to be added to the cluster's file, by host.
        new: keys that nobody has accepted.
        refused: hosts that must not be asked, and why.
    """

    lines: dict[str, list[str]] = field(default_factory=dict)
    new: list[HostKey] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def fingerprint_of(key: str) -> str:
    """As ssh-keygen shows it: SHA256:..."""
    try:
        content = base64.b64decode(key.split()[1], validate=True)
    except (binascii.Error, IndexError, ValueError):
        raise HostError(f"{shown(key)}: is no public key") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


class KnownHosts:
    """The names in a known_hosts file, hashed or not."""

    def __init__(self, text: str) -> None:
        self._plain: set[str] = set()
        self._hashed: list[tuple[bytes, bytes]] = []
        for line in text.splitlines():
            words = line.split()
            if len(words) < 3 or words[0].startswith(("#", "@")):
                continue
            if words[0].startswith("|1|"):
                salt, _, digest = words[0].removeprefix("|1|").partition("|")
                try:
                    self._hashed.append((base64.b64decode(salt), base64.b64decode(digest)))
                except binascii.Error:
                    continue  # ssh skips it, too
            else:
                self._plain |= set(words[0].split(","))

    def __contains__(self, lookup: str) -> bool:
        name = lookup.encode()
        return lookup in self._plain or any(hmac.digest(salt, name, "sha1") == want for salt, want in self._hashed)


def read_accepted(file: Path) -> dict[str, set[str]]:
    """Fingerprints by host: lines of `node[001-128] SHA256:...`, the rest of a line is comment. Raises `HostError`."""
    accepted: dict[str, set[str]] = {}
    for number, line in enumerate(read_text(file, error=HostError, max_bytes=_MAX_BYTES).splitlines(), start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        origin = f"{shown(file)}:{number}"
        if len(words) < 2 or not _FINGERPRINT.fullmatch(words[1]):
            raise HostError(f"{origin}: must be a host or range and its fingerprint: node001 SHA256:...")
        for host in expand_hosts([words[0]], origin):
            accepted.setdefault(host, set()).add(words[1])
    if not accepted:
        raise HostError(f"{shown(file)}: holds no fingerprint; give lines of a host and its fingerprint")
    return accepted


def places_of(ssh: Ssh, hosts: Sequence[str]) -> dict[str, Place]:
    """Where ssh's configuration leads for each host; nothing is connected to. Hosts that it refuses are left out."""

    here = pwd.getpwuid(os.getuid()).pw_name

    def find(host: str) -> Place | None:
        done = _run([*ssh.command, *ssh.options, "-G", "--", host])
        settings: dict[str, str] = {}
        for line in done.splitlines():
            name, _, value = line.partition(" ")
            settings.setdefault(name, value)
        address, port = settings.get("hostname", ""), settings.get("port", "")
        if not _ADDRESS.fullmatch(address) or not port.isdecimal():
            return None
        alias = settings.get("hostkeyalias", "")
        alias = alias if _ADDRESS.fullmatch(alias) and alias != "none" else ""
        lookup = alias or (address if port == "22" else f"[{address}]:{port}")
        user = settings.get("user", "")
        return Place(
            host,
            address,
            int(port),
            lookup.lower(),
            alias,
            user if _ADDRESS.fullmatch(user) and user != here else "",
            tuple(settings.get("userknownhostsfile", "").split() + settings.get("globalknownhostsfile", "").split()),
            next(
                (settings[name] for name in ("proxyjump", "proxycommand") if settings.get(name, "none") != "none"), ""
            ),
        )

    places = map_in_threads(find, hosts, _AT_ONCE)
    return {place.host: place for place in places if place is not None}


def known_already(places: Sequence[Place]) -> dict[str, list[HostKey]]:
    """Keys by host that ssh's own files know."""

    def find(place: Place) -> list[HostKey]:
        keys: dict[str, HostKey] = {}
        for file in place.files:
            if Path(file).is_file():
                said = _run(["ssh-keygen", "-F", place.lookup, "-f", file])
                for line in said.splitlines():
                    _, _, key = line.partition(" ")
                    found = _KEY.match(key) if not line.startswith(("#", "@")) else None
                    if found:
                        keys[found[0]] = HostKey(place, found[0])
        return list(keys.values())

    found = map_in_threads(find, places, _AT_ONCE)
    return {place.host: keys for place, keys in zip(places, found, strict=True) if keys}


def scan(places: Sequence[Place]) -> dict[str, list[HostKey]]:
    """The keys that machines show to whoever asks. Not to be believed: see the module."""
    found: dict[str, list[HostKey]] = {}
    for types in ("ed25519", "ecdsa,rsa"):
        missing = [place for place in places if place.host not in found]
        for port in sorted({place.port for place in missing}):
            there = {place.address: place for place in missing if place.port == port}
            # Names have been checked; they go to standard input, so that none can be an option.
            command = ["ssh-keyscan", "-T", str(_SCAN_LIMIT_S), "-p", str(port), "-t", types, "-f", "-"]
            _note_keys(_run(command, "\n".join(there) + "\n"), port, missing, found)
    return found


def decide(new: Mapping[str, list[HostKey]], accepted: Mapping[str, set[str]]) -> Trust:
    """Which of the keys that were scanned the given fingerprints accept."""
    trust = Trust()
    for host, keys in new.items():
        good = [key for key in keys if key.fingerprint in accepted.get(host, set())]
        if good:
            trust.lines[host] = [key.line for key in good]
        elif host in accepted:
            trust.refused[host] = (
                f"it shows {', '.join(key.fingerprint for key in keys)}, which is not what is accepted"
            )
        else:
            trust.new += keys
            trust.refused[host] = "its host key is not known"
    return trust


def _note_keys(said: str, port: int, places: Sequence[Place], found: dict[str, list[HostKey]]) -> None:
    by_name: dict[str, list[Place]] = {}
    for place in places:
        if place.port == port:
            by_name.setdefault(place.address if port == 22 else f"[{place.address}]:{port}", []).append(place)
    for line in said.splitlines():
        name, _, key = line.partition(" ")
        if _KEY.fullmatch(key.strip()):
            for place in by_name.get(name, ()):
                found.setdefault(place.host, []).append(HostKey(place, key.strip()))


def _run(command: Sequence[str], stdin: str = "") -> str:
    """What it prints, whatever it ends with: nothing found is an answer."""
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="replace", timeout=_RUN_LIMIT_S, check=False
        )
    except OSError as error:
        raise HostError(f"'{command[0]}' cannot be started here: {error.strerror}; install OpenSSH's client") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"'{command[0]}' has not ended within {_RUN_LIMIT_S} s") from None
    return done.stdout
