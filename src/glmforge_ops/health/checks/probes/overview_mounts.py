"""File systems that a job uses. Apart from the other facts of a glance, since a dead file server makes this hang."""

import os
import tempfile
from pathlib import Path

_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "fuse.", "9p", "glusterfs", "wekafs")
_PATHS = ("local_path", "shared_path", "checkpoint_path")


def gather(cluster: dict) -> dict:
    wanted = ["/", str(Path.home()), tempfile.gettempdir(), str(Path.cwd())]
    wanted += [cluster[name] for name in _PATHS if cluster.get(name)]
    mounts = _mounts()
    found: dict = {}
    missing = []
    for path in wanted:
        if not Path(path).is_dir():
            missing.append(path)
            continue
        mount = _mount_of(str(Path(path).resolve()), mounts)
        found.setdefault(mount[0], _facts(mount))["paths"].append(path)
    return {"mounts": list(found.values()), "missing": missing}


def _mounts() -> list:
    """Place, kind and options; a later one lies over an earlier one at the same place."""
    with Path("/proc/self/mounts").open(errors="surrogateescape") as file:
        rows = [line.split() for line in file]
    return [(row[1].replace("\\040", " "), row[2], row[3].split(",")) for row in rows if len(row) > 3]


def _mount_of(path: str, mounts: list) -> tuple:
    inside = [row for row in mounts if path == row[0] or path.startswith(row[0].rstrip("/") + "/")]
    return max(enumerate(inside), key=lambda pair: (len(pair[1][0]), pair[0]))[1] if inside else ("/", "unknown", [])


def _facts(mount: tuple) -> dict:
    """Bytes, and numbers of files; None where the file system does not count them."""
    place, kind, options = mount
    found = os.statvfs(place)
    return {
        "place": place,
        "kind": kind,
        "network": kind.startswith(_NETWORK),
        "read_only": "ro" in options,
        "total": found.f_blocks * found.f_frsize,
        "free": found.f_bavail * found.f_frsize,
        "files": found.f_files or None,
        "files_free": found.f_favail if found.f_files else None,
        "paths": [],
    }
