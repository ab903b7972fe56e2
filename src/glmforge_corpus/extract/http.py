"""HTTP messages as crawlers store them: more liberal than any standard.

What was measured on real archives: header lines that end in LF alone (ClueWeb), `Content-Encoding: gzip` on bodies that
a crawler has unpacked already, chunk lengths left in or taken out. So a coding is undone only where the bytes bear it.
"""

import re
import zlib
from typing import NamedTuple

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]{0,200}\r?\n")


class Message(NamedTuple):
    """Attributes:
    status: such as 200; 0 if the first line does not tell.
    content_type: lower case, without parameters; "" for none.
    charset: as declared, None without.
    body: with codings undone.
    """

    status: int
    content_type: str
    charset: str | None
    body: bytes


def parse_message(data: bytes, max_body_bytes: int) -> Message | None:
    """A response as stored in an archive; None if it is none."""
    blank = _BLANK_LINE.search(data, 0, 1 << 16)
    if not data.startswith(b"HTTP/") or blank is None:
        return None
    first, *lines = data[: blank.start()].decode("latin-1").splitlines()
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name.strip().lower(), value.strip())
    status = first.split()[1:2]
    declared = headers.get("content-type", "")
    charset = _CHARSET.search(declared)
    body = data[blank.end() :]
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _join_chunks(body)
    return Message(
        status=int(status[0]) if status and status[0].isdigit() else 0,
        content_type=declared.partition(";")[0].strip().lower(),
        charset=charset and charset.group(1),
        body=_decompress(body, headers.get("content-encoding", "").lower(), max_body_bytes),
    )


def _join_chunks(body: bytes) -> bytes:
    """The chunks end to end; the body itself if it is not in chunks after all."""
    parts, at = list[bytes](), 0
    while chunk := _CHUNK.match(body, at):
        size = int(chunk.group(1), 16)
        if not size:
            return b"".join(parts)
        parts.append(body[chunk.end() : chunk.end() + size])
        at = chunk.end() + size
        at += 2 if body.startswith(b"\r\n", at) else body.startswith(b"\n", at)
    return b"".join(parts) if parts and at >= len(body) else body


def _decompress(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The body unpacked as far as it can be, to at most one byte more than the limit."""
    if coding in ("gzip", "x-gzip") and body.startswith(b"\x1f\x8b"):
        return _inflate(body, 31, max_bytes) or body
    if coding == "deflate":
        return _inflate(body, 15, max_bytes) or _inflate(body, -15, max_bytes) or body
    if coding == "br":
        return _unpack_brotli(body) or body
    return body


def _inflate(body: bytes, window: int, max_bytes: int) -> bytes:
    """As much as can be unpacked; nothing if it is packed otherwise."""
    parts, inflater = list[bytes](), zlib.decompressobj(window)
    left, size = body, 0
    try:
        while left and size <= max_bytes and not inflater.eof:
            parts.append(inflater.decompress(left, min(1 << 20, max_bytes + 1 - size)))
            size += len(parts[-1])
            left = inflater.unconsumed_tail
    except zlib.error:
        pass
    return b"".join(parts)


def _unpack_brotli(body: bytes) -> bytes:
    from io import BytesIO

    from fastwarc.stream_io import BrotliReader

    try:
        return bytes(BrotliReader(BytesIO(body)).read())
    except OSError:
        return b""
