"""Where a path lies, and what can be done there."""

import errno
import os


def describe(path: str) -> dict:
    """What is at `path`: kind, file system, room."""
    found: dict = {"path": path, "kind": _kind(path), "mount": None, "writable": None, "write_error": None}
    found.update({"total": None, "free": None, "inodes": None, "inodes_free": None})
    if found["kind"] is None:
        return found
    found["mount"] = find_mount(path)
    room = os.statvfs(path)
    found["total"] = room.f_blocks * room.f_frsize
    found["free"] = room.f_bavail * room.f_frsize
    found["inodes"], found["inodes_free"] = room.f_files, room.f_favail
    return found


def try_writing(path: str) -> dict:
    """Make, write, rename and remove a small file as checkpoints are written. The error's name, and in words."""
    file = None
    try:
        file = os.path.join(path, ".glmforge-check-" + os.urandom(8).hex())
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, b"glmforge\n" * 512)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(file, file + ".renamed")
        file += ".renamed"
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        os.unlink(file)
        file = None
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        return {"writable": False, "write_error": name, "write_reason": error.strerror}
    finally:
        if file is not None and os.path.exists(file):
            os.unlink(file)
    return {"writable": True, "write_error": None, "write_reason": None}


def find_mount(path: str) -> "dict | None":
    """The mount that `path` is on: the last of those whose mount point is the longest that leads to it."""
    real = os.path.realpath(path)
    best = None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            left, _, right = line.rstrip("\n").partition(" - ")
            fields, kinds = left.split(" "), right.split(" ")
            point = fields[4].encode().decode("unicode_escape") if "\\" in fields[4] else fields[4]
            inside = point == "/" or real == point or real.startswith(point + "/")
            if inside and (best is None or len(point) >= len(best["point"])):
                options = fields[5] + "," + (kinds[2] if len(kinds) > 2 else "")
                best = {"point": point, "type": kinds[0], "source": kinds[1], "options": options, "device": fields[2]}
    return best


def _kind(path: str) -> "str | None":
    if os.path.isdir(path):
        return "directory"
    return "file" if os.path.exists(path) else None
