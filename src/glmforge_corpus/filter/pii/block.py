"""Personal data and keys, replaced by tokens: `<email>`, `<phone>`, `<ip>` and so on.

A compiled pass over the batch finds candidates (`scan.py`), rules with check digits decide about each
(`rules.py`, `addresses.py`); Hyperscan finds the marks of keys and the names of passwords (`secrets.py`). Ordinary text
is hardly touched by anything but the two scans. The rules are conservative: what may be a version, a date or an article
number stays.
The tokens are never matched again.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import ClassVar, Literal, NamedTuple

import hyperscan
import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from glmforge.config.model import refuse
from glmforge.data.documents.batch import DocumentBatch
from glmforge_corpus.block import Block, Outcome
from glmforge_corpus.filter.pii.addresses import (
    colon_spans,
    email_span,
    ipv4_spans,
)
from glmforge_corpus.filter.pii.rule import LEAD, TAIL, Window
from glmforge_corpus.filter.pii.rules import RULES, rules_for
from glmforge_corpus.filter.pii.scan import DOTTED, EMAIL, NUMBER, find_candidates
from glmforge_corpus.filter.pii.secrets import (
    BEFORE,
    BEHIND,
    SCAN,
    SECRET_MARKS,
    credential_span,
    secret_may_begin,
    secret_reach,
    secret_span,
)
from glmforge_corpus.filter.word_lists import scan_runs

Kind = Literal["email", "phone", "ip", "mac", "card", "iban", "national_id", "secret"]
KINDS: tuple[Kind, ...] = ("secret", "email", "iban", "card", "national_id", "ip", "mac", "phone")
"""In order of precedence where two overlap."""

CONSTANTS = {
    "email": "email@example.com",
    "phone": "555-0100",
    "ip": "192.0.2.1",
    "mac": "00:00:5E:00:53:00",
    "card": "0000 0000 0000 0000",
    "iban": "XX00 0000 0000 0000",
    "national_id": "000-00-0000",
    "secret": "REDACTED-KEY",
}
"""Values of the same form that are never assigned: reserved for documentation, or impossible."""


class Span(NamedTuple):
    """Personal data in a document: bytes [start, stop) of the batch's text."""

    row: int
    start: int
    stop: int
    kind: str
    rule: str


class PII(Block):
    """Masks e-mail, telephones, public IPs, hardware addresses, cards, IBANs, identity numbers, keys; counts them."""

    kind: ClassVar[str] = "pii"
    kinds: tuple[Kind, ...] = Field(default=KINDS, strict=False, description="what to mask")
    replacement: Literal["token", "constant"] = Field(
        default="token",
        description="token: <email> and so on; constant: a reserved value of the same form",
    )
    tokens: dict[Kind, str] = Field(default_factory=dict, description="replacement of a kind, instead of the default")

    @field_validator("tokens")
    @classmethod
    def _check(cls, tokens: dict[Kind, str]) -> dict[Kind, str]:
        for kind, token in tokens.items():
            if not token.isprintable():
                refuse("tokens", f"the token of '{kind}' must be printable")
        return tokens

    def process(self, batch: DocumentBatch) -> Outcome:
        spans = find_personal_data(batch.text_bytes, batch.text_offsets, frozenset(self.kinds))
        if not spans:
            return Outcome(batch)
        counts = Counter(f"pii: {span.kind}" for span in spans)
        counts.update({"pii: documents": len({span.row for span in spans})})
        tokens: dict[str, bytes] = {kind: self.token(kind).encode() for kind in self.kinds}
        data, offsets = _replace(batch.text_bytes, batch.text_offsets, spans, tokens)
        return Outcome(batch.with_text_buffers(data, offsets), counts=counts)

    def token(self, kind: Kind) -> str:
        """What is put in place of a kind."""
        return self.tokens.get(kind, f"<{kind}>" if self.replacement == "token" else CONSTANTS[kind])


def find_personal_data(
    text_bytes: NDArray[np.uint8], text_offsets: NDArray[np.int64], kinds: frozenset[str] = frozenset(KINDS)
) -> list[Span]:
    """Spans in order, none overlapping another."""
    found = [span for span in _candidate_spans(text_bytes, text_offsets) if span.kind in kinds]
    if "secret" in kinds:
        found += _secret_spans(text_bytes, text_offsets)
    return _without_overlaps(found)


def _candidate_spans(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> list[Span]:
    data, found = text.data, list[Span]()
    for row, start, stop, kind, digits, hints in find_candidates(text, offsets).tolist():
        begin, end = int(offsets[row]), int(offsets[row + 1])
        if kind == EMAIL:
            inner = email_span(bytes(data[start : min(stop + 1, end)]))
            if inner is not None:
                found.append(Span(row, start + inner[0], start + inner[1], "email", "email"))
            continue
        first, last = max(begin, start - LEAD), min(end, stop + TAIL)
        window = Window(bytes(data[first:last]), start - first, first > begin, last < end)
        for name, rule_kind, left, right in _in_window(window, kind, min(digits, 20), hints):
            found.append(Span(row, first + left, first + right, rule_kind, name))
    return found


def _in_window(window: Window, kind: int, digits: int, hints: int) -> list[tuple[str, str, int, int]]:
    if kind != NUMBER:
        addresses = colon_spans(window)
        return [(name, "ip" if name == "ipv6" else "mac", left, right) for name, left, right in addresses]
    found = [("ipv4", "ip", left, right) for left, right in ipv4_spans(window)] if hints & DOTTED else []
    for rule in rules_for(digits, hints):
        found += [(rule.name, rule.kind, left, right) for left, right in rule.find(window)]
    return found


@cache
def _secret_database() -> hyperscan.Database:
    """Marks of keys by their numbers, and the names of credentials by the numbers behind these."""
    database = hyperscan.Database()
    marks = [re.escape(mark) for mark in SECRET_MARKS]
    flags = [0] * len(marks) + [hyperscan.HS_FLAG_CASELESS] * len(SCAN)
    expressions = [*marks, *(pattern.encode() for pattern in SCAN)]
    numbers = list(range(len(expressions)))
    database.compile(expressions=expressions, ids=numbers, elements=len(numbers), flags=flags)
    return database


def _secret_spans(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> list[Span]:
    data, marks = text.data, list[tuple[int, int]]()
    for first, last in scan_runs(offsets):
        begin, end = int(offsets[first]), int(offsets[last])
        for part in range(begin, end, _MAX_SCAN):  # a document beyond Hyperscan's 32-bit lengths
            piece = data[part : min(end, part + _MAX_SCAN)]
            note = _noting(marks, part)
            _secret_database().scan(piece, match_event_handler=note)  # type: ignore[type-var]
    found = []
    for mark, stop in marks:
        row = int(np.searchsorted(offsets, stop - 1, side="right")) - 1
        begin, end = int(offsets[row]), int(offsets[row + 1])
        span = (
            _credential(data, begin, end, stop)
            if mark >= len(SECRET_MARKS)
            else _key(data, begin, end, mark, stop - len(SECRET_MARKS[mark]))
        )
        if span is not None:
            name = SECRET_MARKS[mark].decode() if mark < len(SECRET_MARKS) else "credential"
            found.append(Span(row, *span, "secret", name))
    return found


def _key(data: memoryview, begin: int, end: int, mark: int, start: int) -> tuple[int, int] | None:
    """The key with the mark at `start`, in the document from `begin` to `end`."""
    if start < begin:  # the mark began in the document before
        return None
    before, behind = bytes(data[max(begin, start - 13) : start]), bytes(data[start : min(end, start + 64)])
    if not secret_may_begin(mark, before, behind):
        return None
    lead, tail = secret_reach(mark)
    first, last = max(begin, start - lead), min(end, start + len(SECRET_MARKS[mark]) + tail)
    span = secret_span(mark, bytes(data[first:last]), start - first)
    return None if span is None else (first + span[0], first + span[1])


def _credential(data: memoryview, begin: int, end: int, stop: int) -> tuple[int, int] | None:
    """The value behind a credential's name, the match of which ended at `stop`."""
    first, last = max(begin, stop - BEFORE), min(end, stop + BEHIND)
    span = credential_span(bytes(data[first:last]), stop - first)
    return None if span is None else (first + span[0], first + span[1])


def _noting(marks: list[tuple[int, int]], offset: int) -> Callable[[int, int, int, int, object], None]:
    def note(mark: int, start: int, stop: int, flags: int, context: object) -> None:
        marks.append((mark, offset + stop))

    return note


_MAX_SCAN = 1 << 31


def _without_overlaps(found: list[Span]) -> list[Span]:
    """By precedence of kinds, then of rules (the order in which they are found), then place."""
    order: dict[str, int] = {kind: place for place, kind in enumerate(KINDS)}
    rules = {rule.name: place for place, rule in enumerate(RULES)}
    kept: list[Span] = []
    for span in sorted(set(found), key=lambda span: (span.start, -span.stop)):
        if kept and span.start < kept[-1].stop:
            rank = [(order[one.kind], rules.get(one.rule, 0), one.start) for one in (span, kept[-1])]
            if rank[0] < rank[1]:
                kept[-1] = span
        else:
            kept.append(span)
    return kept


def _replace(
    text: NDArray[np.uint8], offsets: NDArray[np.int64], spans: list[Span], tokens: dict[str, bytes]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts with the spans replaced."""
    data, pieces, at = text.data, list[bytes | memoryview](), int(offsets[0])
    growth = np.zeros(len(offsets), np.int64)
    for span in spans:
        token = tokens[span.kind]
        pieces += (data[at : span.start], token)
        growth[span.row + 1] += len(token) - (span.stop - span.start)
        at = span.stop
    pieces.append(data[at : int(offsets[-1])])
    return np.frombuffer(b"".join(pieces), np.uint8), offsets - offsets[0] + np.cumsum(growth)
