"""Web pages and web archives (WARC, WET) to documents."""

import mmap
import re
from collections.abc import Iterator
from typing import BinaryIO, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from glmforge.errors import DataError
from glmforge_corpus.extract.html.process import UnreadablePageError, page_process
from glmforge_corpus.extract.http import parse_message
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.plain import read_whole
from glmforge_corpus.extract.records import Context, Record

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
        raise DataError(f"{file.path}: empty: fetch it again")
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
                detail = f"{len(data):,} of {record.content_length:,} bytes are there"
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
