"""Issues, pull requests and commits to text: what was asked, what was said, what was changed.

A record is a JSON object of the fields that GitHub's and GitLab's interfaces call so: `title`, `body`, `user` or
`author` (a name, or an object with `login` or `name`), `comments` or `discussion` (texts, or objects with `body`),
`patch` or `diff` (a text, or a list of objects with `filename` and `patch`), `message` for commits. The change comes
as a diff, as Git writes it.
"""

from collections.abc import Iterator
from typing import Any

import orjson

from glmforge.data.documents.compression import chunks_of
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.jsonl import line_blocks
from glmforge_corpus.extract.records import Context, Record

_METADATA = ("repo", "repository", "number", "state", "url", "html_url", "labels", "sha", "created_at")


def read_issues(file: SourceFile, context: Context) -> Iterator[Record]:
    """The records of a file of JSON lines, or of one JSON array."""
    for block in line_blocks(chunks_of(file.path), context.max_document_bytes):
        where = f"{file.name}:{block.number}"
        if block.data is None:
            context.reject("too long", where, block.begin, "")
            continue
        for number, line in enumerate(block.data.split(b"\n"), start=block.number):
            if line.strip():
                yield from _record(line, f":{number}", file, context)


def _record(line: bytes, label: str, file: SourceFile, context: Context) -> Iterator[Record]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        context.reject("not JSON", file.name + label, line[:1000], str(error))
        return
    for index, item in enumerate(value if isinstance(value, list) else [value], start=1):
        place = f"{label}:{index}" if isinstance(value, list) else label
        text = issue_text(item) if isinstance(item, dict) else ""
        if text:
            metadata = {key: item[key] for key in _METADATA if item.get(key) not in (None, "", [])}
            yield Record(place, text.encode(), metadata)
        else:
            context.reject("not an issue", file.name + place, line[:1000], "no title, body, message or patch")


def issue_text(item: dict[str, Any]) -> str:
    """An issue, pull request or commit as text; empty if it has nothing of one."""
    parts = []
    title = _string(item.get("title"))
    body = _string(item.get("body")) or _string(item.get("message"))
    if title:
        parts.append(f"# {title}")
    if body:
        parts.append(_said(_author(item), body))
    for comment in _list(item.get("comments")) or _list(item.get("discussion")):
        said = (
            comment if isinstance(comment, str) else _string(comment.get("body")) if isinstance(comment, dict) else ""
        )
        if said.strip():
            parts.append(_said(_author(comment) if isinstance(comment, dict) else "", said.strip()))
    parts += _diffs(item.get("patch") or item.get("diff") or item.get("files"))
    return "\n\n".join(parts)


def _said(author: str, text: str) -> str:
    return f"{author}:\n{text}" if author else text


def _author(item: dict[str, Any]) -> str:
    value = item.get("user") or item.get("author")
    if isinstance(value, dict):
        value = value.get("login") or value.get("name")
    return _string(value)


def _diffs(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value.strip("\n")] if value.strip() else []
    diffs = []
    for change in _list(value):
        if isinstance(change, dict) and _string(change.get("patch")):
            name = _string(change.get("filename")) or _string(change.get("path"))
            patch = str(change["patch"]).strip("\n")
            header = "" if patch.startswith(("diff ", "--- ")) else f"--- a/{name}\n+++ b/{name}\n"
            diffs.append(header + patch)
    return diffs


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _string(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
