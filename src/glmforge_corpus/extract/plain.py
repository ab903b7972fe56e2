"""Plain text files: one document each."""

from collections.abc import Iterator

from glmforge.data.documents.compression import chunks_of
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.records import Context, Record


def read_text(file: SourceFile, context: Context) -> Iterator[Record]:
    """The text of a file. It must be UTF-8, or begin with the byte order mark of UTF-16: nothing is guessed."""
    data = read_whole(file, context)
    if data is None:
        return
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        yield Record("", data.decode(encoding).encode())
    except UnicodeDecodeError as error:
        context.reject("invalid UTF-8", file.name, data[:1000], str(error))


def read_whole(file: SourceFile, context: Context) -> bytes | None:
    """The bytes of a file, decompressed; None, and it is put aside, if they are too many.

    Raises:
        DataError: the file is damaged.
    """
    parts, size = list[bytes](), 0
    for chunk in chunks_of(file.path):
        parts.append(chunk)
        size += len(chunk)
        if size > context.max_document_bytes:
            detail = f"more than max_document_bytes = {context.max_document_bytes:,}"
            context.reject("too long", file.name, b"".join(parts)[:1000], detail)
            return None
    return b"".join(parts)
