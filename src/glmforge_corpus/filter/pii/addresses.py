"""Rules for e-mail, IP and hardware addresses.

What is not masked, because masking it would damage text without protecting anyone:

* e-mail: names reserved for examples (RFC 2606: example.com, .test ...), `git@` and the like in URLs of
  repositories, anything without a top-level domain of the Internet (icon@2x.png, getty@tty1.service, matrix
  products: q@k.transpose), and of those that have one by chance what looks like a method call: x@w.to(device);
* IPv4: private, loopback, documentation and multicast ranges; numbers of four parts after a word like "version",
  in a file name or as the number of a section; those whose first part is below 10 unless a word like "address" is
  near: that is one address in 25, and nearly all version numbers; those that begin like common object identifiers
  (2.5.4, 1.3.6, 2.23): fewer than one address in 10,000;
* IPv6 outside of 2000::/3, prefixes (2002::), and 2001:db8::/32, 3fff::/20, which are for documentation;
* hardware addresses that are broadcast, multicast, documentation's (RFC 7042) or obviously invented.
"""

import ipaddress
import re
from importlib.resources import files

from glmforge_corpus.filter.pii.rule import LEAD, Window

_EMAIL = re.compile(
    rb"[A-Za-z0-9_+](?:[A-Za-z0-9._%+'-]*[A-Za-z0-9_+-])?@(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,24}"
)
_RESERVED_DOMAIN = re.compile(
    rb"(?i)(?:^|\.)(?:example\.(?:com|net|org|edu)|example|test|invalid|localhost|local|localdomain)$"
)
TOP_LEVEL_DOMAINS = frozenset(
    b" ".join(files(__package__).joinpath("top_level_domains.txt").read_bytes().splitlines()[1:]).split()
)
"""`q@k.transpose` has the form of an address, but there is no domain "transpose"."""

_METHODS = frozenset(b"call cat data dot int is map mm name new prod read run to zip".split())
"""Top-level domains that are more often a function or an attribute behind a matrix: `x@w.to(device)`, `A@B.data`."""
_NEVER_MAIL = frozenset(b"data map prod zip mov".split())
_NO_PERSON = frozenset(
    [b"git", b"hg", b"svn", b"cvs", b"anonymous", b"anoncvs", b"noreply", b"no-reply", b"donotreply"]
)


def email_span(data: bytes) -> tuple[int, int] | None:
    """Where in `data`, the characters around an "@", the address stands."""
    at = data.index(b"@")
    start = at - len(data[:at].lstrip(b".%'-"))
    match = _EMAIL.match(data, start)
    if match is None or b".." in match[0]:
        return None
    if data[match.end() : match.end() + 1].isalnum():
        return None
    local, domain = match[0].split(b"@")
    name = domain.rpartition(b".")[2]
    top_level = name.lower()
    if name not in (top_level, name.upper(), name.capitalize()):
        return None  # K.mT
    if local.lower() in _NO_PERSON or top_level not in TOP_LEVEL_DOMAINS or _RESERVED_DOMAIN.search(domain):
        return None
    if top_level in _METHODS and (top_level in _NEVER_MAIL or data[match.end() : match.end() + 1] in (b"(", b"[")):
        return None
    return match.span()


_IPV4 = re.compile(rb"(?<![\w.-])(?<![A-Za-z)]/)(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?!\w|[.-]\w)")
_VERSION = re.compile(
    (
        r"(?i)(?:version|release|revision|firmware|build|section|chapter|kernel|driver|figure|table|chrome|firefox|"
        r"opera|safari|edge|版本|版)(?:s|en)?\W{0,3}(?:no\.?|number)?\W{0,3}$|(?:§|(?<![a-z])(?:ver|rev|sec|v|r))\.?\s?$"
    ).encode()
)
_ADDRESS_WORD = re.compile(
    rb"(?i)(?<![a-z<])(?:ip|ipv4|addr|address|host|server|ping|dns|resolver|nameserver|gateway|proxy|login|from)(?![a-z])"
)


_OBJECT_IDENTIFIER = re.compile(rb"2\.5\.(?:[1-9]|1\d|2[0-9]|3[0-9])\.|1\.3\.(?:6|14|36|132)\.|1\.[02]\.\d+\.|2\.23\.")


def ipv4_spans(window: Window) -> list[tuple[int, int]]:
    """Public addresses in a window."""
    spans = []
    for match in _IPV4.finditer(window.data, 1 if window.cut_left else 0):
        if match.end() <= window.start:  # its own window has all that stands before it
            continue
        parts = [int(part) for part in match.groups()]
        if max(parts) > 255 or any(len(part) > 1 and part[:1] == b"0" for part in match.groups()):
            continue
        address = ipaddress.IPv4Address(bytes(parts))
        if not address.is_global or address.is_multicast:
            continue
        before = window.data[max(0, match.start() - LEAD) : match.start()]
        if _VERSION.search(before) or _is_heading(before, window.data[match.end() : match.end() + 2], parts):
            continue
        if parts[0] < 10 and not _ADDRESS_WORD.search(before):
            continue
        if _OBJECT_IDENTIFIER.match(match[0]):
            continue
        spans.append(match.span())
    return spans


def _is_heading(before: bytes, behind: bytes, parts: list[int]) -> bool:
    """Whether it numbers a section: it begins a line, and a full stop follows or all parts are small."""
    line = before.rpartition(b"\n")[2]
    return not line.strip(b" \t#*=") and (behind == b". " or max(parts) < 50)


_IPV6 = re.compile(rb"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{1,34}(?![\w:])")
_DOCUMENTATION = tuple(map(ipaddress.IPv6Network, ("2001:db8::/32", "3fff::/20")))
_MAC = re.compile(rb"(?<![\w:-])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w-]|:\w)")
_MADE_UP_MACS = frozenset(
    bytes.fromhex(name) for name in ("001122334455", "0123456789ab", "123456789abc", "aabbccddeeff", "deadbeef0000")
)


def colon_spans(window: Window) -> list[tuple[str, int, int]]:
    """("ipv6" or "mac", start, stop) in a window around a colon."""
    first = 1 if window.cut_left else 0
    spans = [("mac", *match.span()) for match in _MAC.finditer(window.data, first) if _is_device(match[0])]
    for match in _IPV6.finditer(window.data, first):
        text = match[0].decode().removesuffix(":")
        if not text.endswith(":") and _is_global_ipv6(text):
            spans.append(("ipv6", match.start(), match.start() + len(text)))
    return spans


def _is_device(address: bytes) -> bool:
    value = bytes.fromhex(address.decode().replace(":", ""))
    group, documentation = value[0] & 1, value[:5] == b"\x00\x00\x5e\x00\x53"
    return not group and not documentation and len(set(value)) > 1 and value not in _MADE_UP_MACS


def _is_global_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return not any(address in network for network in _DOCUMENTATION)
