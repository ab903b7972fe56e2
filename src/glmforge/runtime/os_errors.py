"""What the operating system refused, in words, and what helps."""

import errno
import os

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
