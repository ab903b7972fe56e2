"""Web pages and web archives (WARC, WET) to documents.

HTTP messages are read as crawlers store them, more liberally than any standard. Real archives have header lines that
end in LF alone (ClueWeb), `Content-Encoding: gzip` on bodies that a crawler has unpacked already, chunk lengths left in
or taken out. So a coding is undone only where the bytes have it.
"""

import mmap
import re
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from glmforge.errors import DataError
from glmforge_corpus.extract.html.process import UnreadablePageError, page_process
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.records import Context, Record, read_whole

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
    """A response as stored in an archive, or None."""
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


_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_GZIP_MAGIC = b"\x1f\x8b\x08"
_FIRST_LINE = re.compile(rb"WARC/\d\.\d{1,2}\r?\n")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_MOST_PADDING = 8
"""Bytes between records that are no damage: line ends, of which there are too many in some archives."""

_WANTED = WarcRecordType.response | WarcRecordType.conversion | WarcRecordType.resource


def read_html(file: SourceFile, context: Context) -> Iterator[Record]:
    """The main text of a page that is a file."""
    data = read_whole(file, context)
    if data is not None:
        yield from _page(data, None, file, "", {}, context)


def _page(
    data: bytes, charset: str | None, file: SourceFile, label: str, metadata: dict[str, str], context: Context
) -> Iterator[Record]:
    try:
        page = page_process().read(data, charset, context.page_seconds, recall_first=context.recall_first)
    except UnreadablePageError as error:
        context.reject("unreadable page", file.name + label, data[:1000], f"a page of {len(data):,} bytes {error}")
        return
    if not page.text.strip():
        context.reject("no main text", file.name + label, data[:1000], f"a page of {len(data):,} bytes")
        return
    if page.title:
        metadata["title"] = page.title
    if page.language:
        metadata["declared_language"] = page.language
    yield Record(label, page.text, metadata)


def read_warc(file: SourceFile, context: Context) -> Iterator[Record]:
    """The pages and texts of an archive; what is damaged is put aside and reading goes on at the next record.

    Labels count all records of the archive that are responses, resources or conversions.
    """
    if not file.size:
        raise DataError(f"{file.path}: empty; download it again")
    with file.path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as archive:
        number = 0
        for record in _records(archive, file, context):
            if not record.record_type & _WANTED:
                continue
            number += 1
            label = f":{number}"
            if record.content_length > context.max_document_bytes:
                context.reject("too long", file.name + label, b"", f"a record of {record.content_length:,} bytes")
                continue
            data = bytes(record.reader.read())
            if len(data) < record.content_length:
                detail = f"{len(data):,} of {record.content_length:,} bytes present"
                context.reject("cut off", file.name + label, data[:1000], detail)
                continue
            yield from _document(record, data, file, label, context)


def _document(record: WarcRecord, data: bytes, file: SourceFile, label: str, context: Context) -> Iterator[Record]:
    headers = {"url": record.headers.get("WARC-Target-URI"), "date": record.headers.get("WARC-Date")}
    metadata = {key: str(value) for key, value in headers.items() if value}
    if record.record_type == WarcRecordType.conversion:
        yield from _text(data, file, label, metadata, context)
        return
    content_type, charset = str(record.headers.get("Content-Type") or ""), None
    if record.record_type == WarcRecordType.response:
        message = parse_message(data, context.max_document_bytes)
        if message is None:
            context.reject("not an HTTP response", file.name + label, data[:1000], "")
            return
        if message.status >= 300:
            context.count(f"warc: status {message.status // 100}xx")
            return
        content_type, charset, data = message.content_type, message.charset, message.body
    content_type = content_type.partition(";")[0].strip().lower()
    if not data.strip():
        context.reject("empty text", file.name + label, b"", "an empty body")
    elif content_type in _HTML_TYPES or (not content_type and b"<html" in data[:2000].lower()):
        yield from _page(data, charset, file, label, metadata, context)
    elif content_type == "text/plain":
        yield from _text(data, file, label, metadata, context)
    else:
        context.count(f"warc: {content_type or 'no content type'}")


def _text(data: bytes, file: SourceFile, label: str, metadata: dict[str, str], context: Context) -> Iterator[Record]:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        context.reject("invalid UTF-8", file.name + label, data[:1000], str(error))
    else:
        yield Record(label, data, metadata)


def _records(archive: mmap.mmap, file: SourceFile, context: Context) -> Iterator[WarcRecord]:
    """All records that can be found. fastwarc stops at some damage and passes over other without a word: where records
    do not follow each other, or the iterator stops, what lies between is put aside and searched for the next record."""
    compressed = archive[:2] == _GZIP_MAGIC[:2]
    at = 0
    while at >= 0:
        archive.seek(at)
        expected, detail = at, "no record here"
        try:
            for record in ArchiveIterator(cast(BinaryIO, archive), parse_http=False):
                start = record.stream_pos
                if not compressed:
                    if start - expected > _MOST_PADDING:
                        break
                    header_end = _header_end(archive, start)
                    if _FIRST_LINE.search(archive, start + 1, header_end):  # the header of another ran into this one's
                        where = f"{file.name}@{start}"
                        context.reject("damaged record", where, archive[start : start + 200], "a header without an end")
                    expected = min(header_end + record.content_length, len(archive))
                else:
                    expected = start + 1
                yield record
            else:
                if expected > at and (compressed or len(archive) - expected <= _MOST_PADDING):
                    return
        except OSError as error:
            detail = str(error)
        context.reject("damaged record", f"{file.name}@{expected}", archive[expected : expected + 200], detail)
        at = _next_start(archive, expected + 1, compressed)


def _header_end(archive: mmap.mmap, start: int) -> int:
    blank = _BLANK_LINE.search(archive, start)
    return blank.end() if blank else len(archive)


def _next_start(archive: mmap.mmap, after: int, compressed: bool) -> int:
    """Where the next record begins: a gzip member, or WARC's first line; -1 for nowhere."""
    if compressed:
        return archive.find(_GZIP_MAGIC, after)
    found = _FIRST_LINE.search(archive, after)
    return found.start() if found else -1
