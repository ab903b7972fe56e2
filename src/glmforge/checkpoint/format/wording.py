"""How checkpoint errors are put into words: lists of names and what the operating system refused."""

import errno
import os
from collections.abc import Sequence

from pydantic import ValidationError

from glmforge.files import shown

_NAMED = 3  # messages name so many items of a list and count the others

_FIXES = {
    errno.ENOSPC: "free space there or set another output_dir",
    errno.EDQUOT: "free space within your quota or set another output_dir",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or set another output_dir",
    errno.EACCES: "make it accessible to this user or set another output_dir",
    errno.EPERM: "make it accessible to this user or set another output_dir",
    errno.EROFS: "mount it writable or set another output_dir",
    errno.ENOENT: "all nodes must see the same directory, and nothing else may remove files from it",
}


def describe_os_error(error: OSError, doing: str = "") -> str:
    """One line: what was refused, while `doing` what ("writing <file>"), and what helps."""
    code = error.errno or 0
    reason = os.strerror(code) if code else str(error)
    doing = doing or (f"using {error.filename}" if error.filename else "")
    what = f"{reason[:1].lower()}{reason[1:]} {doing}".rstrip()
    return f"{what}; {_FIXES[code]}" if code in _FIXES else what


def describe_invalid(error: ValidationError) -> tuple[str, str]:
    """Where the first of the mistakes is ("config.model.vocab_size") and what it is, each without line ends."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return shown(where) if where else "the file", shown(first["msg"])


def list_some(items: Sequence[str], separator: str = ", ") -> str:
    """The first few items; how many more there are."""
    more = len(items) - _NAMED
    return separator.join(items[:_NAMED]) + (f" and {more} more" if more > 0 else "")
