"""Small files from outside, read without trusting them: the one door for configurations, indexes and other JSON.

What a stranger's file can do to a program that simply opens it: never end (a device, a FIFO), fill the memory, nest so
deep that walking the tree overflows the stack, hold numbers that no later step can carry (`NaN`, 5,000 digits) or
text that cannot be printed. Here a file is opened without waiting, must be a regular one of bounded size, and JSON is
bounded in depth, in the number of its values and in its numbers *before* anybody uses it. Whatever is wrong is raised
as the caller's own kind of `GlmforgeError`, in one line that names the file.

Large files (token shards, tensors) have readers of their own, which bound them by what their headers promise.
"""

import errno
import json
import math
import os
import reprlib
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from glmforge.errors import GlmforgeError

MAX_BYTES = 1 << 20
"""Most bytes of a file, unless the caller expects more: a hundred times a published `config.json`."""

MAX_VALUES = 1_000_000
"""Most values and collections in JSON: at up to 250 bytes each in memory."""

MAX_DEPTH = 64
"""Most levels of collections within each other."""

MAX_DIGITS = 40
"""Most digits of an integer: enough for 128 bits, which is what random generators keep."""

Kind = Literal["file", "directory", "other"]

IN_TEXT = "\n\t\u200c\u200d" + "".join(map(chr, (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))
"""What good text has of characters that are not printable: line breaks, joiners, spaces of all widths."""

_T = TypeVar("_T")


def kind_of(path: Path, *, error: type[GlmforgeError]) -> Kind | None:
    """What `path` leads to, None if to nothing; "other" is a device, a FIFO or a socket. Raises `error`.

    Unlike `Path.exists` it answers for names that are no names as well: too long, with a null byte, in a circle.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        if failure.errno == errno.ENAMETOOLONG:
            return None
        raise error(f"{shown(path)}: cannot be read: {failure.strerror}") from None
    except ValueError:  # a null byte, a character that no file system has
        return None
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"


def absolute(path: Path) -> Path:
    """From the root on. `..` leads where the system would go, also behind a link; without one, links stay as given."""
    return path.resolve() if ".." in path.parts else path.absolute()


def open_regular(path: Path, mode: Literal["rb", "ab", "wb", "xb"] = "rb", *, buffering: int = -1) -> BinaryIO:
    """As `Path.open`, for a file that another user may have put there: never waits, as it would for a FIFO.

    A new file has no wider permissions than its directory. Raises `OSError`, also if it is not a regular file.
    """
    return open(path, mode, buffering, opener=_open_regular)


def _open_regular(name: str, flags: int) -> int:
    mode = 0o666
    if flags & os.O_CREAT:
        mode &= os.stat(os.path.dirname(name) or ".").st_mode  # noqa: PTH116, PTH120
    descriptor = os.open(name, flags | os.O_NONBLOCK, mode)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        why = (errno.EISDIR, "Is a directory") if stat.S_ISDIR(kind) else (errno.EINVAL, "is not a regular file")
        raise OSError(*why, name)
    return descriptor


def read_bytes(path: Path, *, error: type[GlmforgeError], max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `max_bytes`. Raises `error`; never waits for a writer."""
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except OSError as failure:
        raise error(f"{shown(path)}: cannot be read: {failure.strerror or failure}") from None
    except ValueError:
        raise error(f"{shown(path)}: cannot be read: no file can have this name") from None
    if len(content) > max_bytes:
        raise error(f"{shown(path)}: cannot be read: has more than {max_bytes:,} bytes; is it the right file?")
    return content


def read_end(path: Path, *, error: type[GlmforgeError], max_bytes: int = MAX_BYTES) -> bytes:
    """The last `max_bytes` of a regular file, or all of it if shorter. Raises `error`; never waits for a writer."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read(max_bytes)
    except OSError as failure:
        raise error(f"{shown(path)}: cannot be read: {failure.strerror or failure}") from None


def read_text(path: Path, *, error: type[GlmforgeError], max_bytes: int = MAX_BYTES) -> str:
    """The text of a regular UTF-8 file of at most `max_bytes`. Raises `error`."""
    try:
        return read_bytes(path, error=error, max_bytes=max_bytes).decode("utf-8")
    except UnicodeDecodeError as failure:
        raise error(f"{shown(path)}: cannot be read: not UTF-8 text (byte {failure.start:,})") from None


def read_json(
    path: Path,
    expected: type[_T],
    *,
    error: type[GlmforgeError],
    max_bytes: int = MAX_BYTES,
    max_values: int = MAX_VALUES,
) -> _T:
    """The value in a JSON file, of type `expected` (dict, list) at the top. Raises `error`; see `parse_json`."""
    text = read_text(path, error=error, max_bytes=max_bytes)
    return parse_json(text, expected, source=shown(path), error=error, max_values=max_values)


def parse_json(
    text: str, expected: type[_T], *, source: str, error: type[GlmforgeError], max_values: int = MAX_VALUES
) -> _T:
    """The value that JSON `text` holds, of type `expected` at the top; `source` is what errors call the text.

    Raises `error` for text that is no JSON, `NaN`, infinite numbers and integers of more than `MAX_DIGITS` digits,
    more than `MAX_DEPTH` levels or `max_values` values, and characters that cannot be written as UTF-8.
    """
    # a value takes two characters at least, with what separates it from the next
    if len(text) > 2 * max_values and text.count(",") + text.count("[") + text.count("{") > max_values:
        raise error(f"{source}: not usable JSON: holds more than {max_values:,} values; is it the right file?")
    try:
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_refuse_constant)
    except json.JSONDecodeError as failure:
        raise error(f"{source}:{failure.lineno}: not valid JSON: {failure.msg} (column {failure.colno})") from None
    except ValueError as failure:
        raise error(f"{source}: not usable JSON: {failure}") from None
    except RecursionError:
        raise error(f"{source}: not usable JSON: {_TOO_DEEP}") from None
    if _is_deeper_than(value, MAX_DEPTH):
        raise error(f"{source}: not usable JSON: {_TOO_DEEP}")
    if "\\" in text and "\\u" in text:  # half a surrogate pair can be written as an escape only
        _check_text(value, source, error)
    if not isinstance(value, expected):
        raise error(
            f"{source}: must contain one JSON {_NAMES.get(expected, expected.__name__)}, not {reprlib.repr(value)}"
        )
    return value


def make_private(path: Path) -> None:
    """Create a directory writable only by this user, for files that this program will execute, or check an existing
    one.

    Raises `OSError`, in one line that says why, for a directory of another user or one that others may have written to.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(f"{shown(path)} is a link; remove it")
    if found.st_uid != os.geteuid():
        raise OSError(f"{shown(path)} belongs to another user (uid {found.st_uid}); remove it, or choose another path")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"others can write to {shown(path)}; remove it")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        path.chmod(0o700)


def why_no_text(text: str) -> str | None:
    """What cannot be written as UTF-8 in it, such as an argument in another encoding; None for good text."""
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        return f"not UTF-8 text: {text[failure.start]!a} is half of a surrogate pair"
    return None


def shown(name: object) -> str:
    """A path, key or other name from outside as errors show it: in one line, for any characters."""
    text = str(name)
    if not text.isprintable():
        text = ascii(text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 2 :]}"


def escaped(text: str, keep: str = "") -> str:
    """Text from outside for a terminal: what is not printable stands as its escape, except for characters in `keep`.

    That is what would move the cursor, and what would hide or reorder the characters beside it.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


_SHOWN = 400  # characters; long enough for any path that a user types
_NAMES: dict[type, str] = {dict: "object", list: "list", str: "string"}
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _integer(digits: str) -> int:
    if (num_digits := len(digits.lstrip("-"))) > MAX_DIGITS:
        raise ValueError(f"an integer of {num_digits:,} digits; at most {MAX_DIGITS} can be read")
    return int(digits)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {reprlib.repr(text)} is too large")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _is_deeper_than(value: object, levels: int) -> bool:
    """Level by level, for a function that calls itself would be what deep nesting breaks."""
    level = [value]
    for _ in range(levels):
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _items(node: dict[str, object] | list[object]) -> list[object]:
    return list(node.values()) if isinstance(node, dict) else node


def _check_text(value: object, source: str, error: Callable[[str], GlmforgeError]) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise error(f"{source}: not usable JSON: holds half of a surrogate pair, which is not a character") from None
