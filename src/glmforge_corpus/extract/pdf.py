"""PDF files to text.

PDFium gives the characters of a page in the order in which they are drawn, line by line. Made text of: lines of one
paragraph are joined, words that were hyphenated at a line's end are joined, and lines that stand at the top or bottom
of many pages (running titles, page numbers) are omitted. What is drawn as a picture has no text; a file of such pages
is put aside, because recognising characters is another program's work.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pypdfium2 as pdfium

from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.records import Context, Record, read_whole

_HYPHEN = re.compile(r"([^\W\d_]{2,})[-\u00ad\u2010]$")
_JOINED = re.compile(r"[\x02\ufffe](\r?\n)?")
"""What PDFium writes for a hyphen at the end of a line, when it takes the word for one."""

_DIGITS = re.compile(r"\d+")
_EDGE_LINES = 2
"""Lines at the top and at the bottom of a page among which running titles and numbers are looked for."""

_REPEATED = 0.5
"""Share of pages on which a line must stand, numbers aside, to be no text of any of them."""

_FULL_LINE = 0.75
"""A line of less than this share of the usual length is the last of its paragraph if it ends a sentence."""


def read_pdf(file: SourceFile, context: Context) -> Iterator[Record]:
    """The text of a PDF file."""
    data = read_whole(file, context)
    if data is None:
        return
    try:
        document = pdfium.PdfDocument(data)
        try:
            pages = [_page_lines(document, number, file, context) for number in range(len(document))]
            metadata = {key.lower(): value for key, value in document.get_metadata_dict(skip_empty=True).items()}
        finally:
            document.close()
    except pdfium.PdfiumError as error:
        reason = "encrypted PDF" if "password" in str(error).lower() else "damaged PDF"
        context.reject(reason, file.name, data[:100], str(error))
        return
    text = pages_to_text(pages)
    if text:
        kept = {key: metadata[key] for key in ("title", "author") if metadata.get(key)}
        yield Record("", text.encode("utf-8", "replace"), {**kept, "pages": len(pages)})
    else:
        context.reject("no text in PDF", file.name, b"", f"{len(pages)} pages, perhaps pictures")


def _page_lines(document: pdfium.PdfDocument, number: int, file: SourceFile, context: Context) -> list[str]:
    """A page's lines; a page that cannot be read is put aside and has none."""
    try:
        page = document[number]
        text = page.get_textpage()
        lines = _JOINED.sub("", str(text.get_text_bounded())).splitlines()
        text.close()
        page.close()
    except pdfium.PdfiumError as error:
        context.reject("damaged PDF page", f"{file.name}:page {number + 1}", b"", str(error))
        return []
    return [" ".join(line.split()) for line in lines]


def pages_to_text(pages: Sequence[Sequence[str]]) -> str:
    """Lines of pages as one text of paragraphs, which may go on from one page to the next."""
    running = _running_lines(pages)
    lines = [line for page in pages for line in _without_running(page, running)]
    return _join_lines(lines)


def _running_lines(pages: Sequence[Sequence[str]]) -> set[str]:
    """Lines, with numbers replaced, that stand at the edge of at least half the pages, and of three at least."""
    counts = Counter(key for page in pages for key in {_key(line) for line in _edges(page)})
    return {key for key, count in counts.items() if count >= max(3, _REPEATED * len(pages))}


def _edges(page: Sequence[str]) -> list[str]:
    filled = [line for line in page if line]
    return filled[:_EDGE_LINES] + filled[-_EDGE_LINES:]


def _key(line: str) -> str:
    return _DIGITS.sub("0", line)


def _without_running(page: Sequence[str], running: set[str]) -> Iterator[str]:
    filled = [index for index, line in enumerate(page) if line]
    edges = {*filled[:_EDGE_LINES], *filled[-_EDGE_LINES:]}
    for index, line in enumerate(page):
        if index not in edges or _key(line) not in running:
            yield line


def _join_lines(lines: Sequence[str]) -> str:
    lengths = sorted(len(line) for line in lines if line)
    usual = lengths[len(lengths) * 3 // 4] if lengths else 0
    paragraphs, current = list[str](), ""
    for line in lines:
        if not line:
            paragraphs.append(current)
            current = ""
            continue
        hyphen = _HYPHEN.search(current)
        separator = "" if hyphen and line[0].islower() else " "
        current = (current[:-1] if not separator else current) + separator + line if current else line
        if len(line) < _FULL_LINE * usual and line[-1] in ".!?:。！？":
            paragraphs.append(current)
            current = ""
    return "\n\n".join(paragraph for paragraph in [*paragraphs, current] if paragraph)
