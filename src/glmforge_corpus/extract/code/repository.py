"""A repository to documents: one per file, or one of all its files in order of dependency.

Only what may be used and what people wrote is taken. The licence of a repository is that of the licence files at its
top, all of which must be permitted; a file with an SPDX header is under the licence named there. What is left out is
counted by its reason.
"""

from collections.abc import Iterator

from glmforge.errors import DataError
from glmforge_corpus.extract.code import kinds
from glmforge_corpus.extract.code.archive import Member, read_members, without_common_directory
from glmforge_corpus.extract.code.licence import (
    header_licence,
    is_licence_file,
    is_permitted,
    licences_of_repository,
)
from glmforge_corpus.extract.code.order import order_by_dependency
from glmforge_corpus.extract.inputs import SourceFile
from glmforge_corpus.extract.records import Context, Record

_MANIFESTS = ("package.json",)


def read_repository(file: SourceFile, context: Context) -> Iterator[Record]:
    """The documents of a repository."""
    members = list[Member]()
    try:
        members.extend(_wanted(file, context))
    except DataError as error:
        context.reject("damaged archive", file.name, b"", str(error))
    members = sorted(without_common_directory(members))
    licences = licences_of_repository(
        (member.path, _decode(member)) for member in members if _tells_licence(member.path)
    )
    files = dict(_texts(members, licences, file, context))
    if not files:
        return
    common = {"repository": file.name.partition("/")[2], "licence": " AND ".join(licences) or None}
    metadata = {key: value for key, value in common.items() if value}
    if file.input.unit == "repository":
        order = order_by_dependency(files)
        text = "\n\n".join(f"File: {path}\n\n{files[path].strip()}" for path in order)
        yield Record("", text.encode(), {**metadata, "files": len(files)}, "code")
        return
    for path, text in files.items():
        yield Record(f"/{path}", text.encode(), {**metadata, "path": path}, "code" if kinds.is_code(path) else None)


def _wanted(file: SourceFile, context: Context) -> Iterator[Member]:
    """Members that may be taken by their names, and those that tell of licences; the others are counted."""

    def wants(path: str, size: int) -> bool:
        return size <= kinds.MAX_BYTES and (
            _tells_licence(path.rpartition("/")[2]) or kinds.why_not_path(path, size) is None
        )

    for member in read_members(file.path, wants):
        if member.data is not None:
            yield member
        else:
            context.count(f"repository file: {kinds.why_not_path(member.path, member.size) or 'too large'}")


def _tells_licence(path: str) -> bool:
    return is_licence_file(path) or path in _MANIFESTS


def _texts(members: list[Member], licences: list[str], file: SourceFile, context: Context) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that are taken."""
    permitted = file.input.licences
    allowed = bool(licences) and all(is_permitted(name, permitted) for name in licences)
    if not allowed and permitted:
        context.count(f"repository: licence {' AND '.join(licences) or 'missing'}")
    for member in members:
        data = member.data or b""
        reason = kinds.why_not_path(member.path, member.size) or kinds.why_not_text(member.path, data)
        header = header_licence(data)
        if reason is None and permitted:
            if header is not None and not is_permitted(header, permitted):
                reason = f"licence {header}"
            elif header is None and not allowed:
                reason = "licence of the repository"
        if reason is not None:
            context.count(f"repository file: {reason}")
            continue
        try:
            yield member.path, data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            context.reject("invalid UTF-8", f"{file.name}/{member.path}", data[:1000], str(error))


def _decode(member: Member) -> str:
    return (member.data or b"").decode(errors="replace")
