"""The fast disk of a node's own, `local_path`: there, writable, really local, with room."""

from collections.abc import Mapping
from statistics import median

from glmforge_ops.health.checks.check import Check, Context, Level
from glmforge_ops.health.checks.facts import FactError, Facts
from glmforge_ops.health.checks.outcome import Outcome, failed, passed, skipped, warning
from glmforge_ops.health.checks.thresholds import Thresholds

NO_PATH = skipped("no local_path is given", "give it in cluster.yaml")

NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "9p", "glusterfs")
"""File systems that other machines serve; "fuse.glusterfs" and the like are meant, too."""

_SIZE_MEND = "look for a disk that is missing or not in its array: lsblk, cat /proc/mdstat"
_SMALLER = 0.9


def local(facts: Facts, context: Context) -> Outcome:
    """Whether files can be written there. That there is no room is another check's matter."""
    if facts.text("path") is None:
        return NO_PATH
    path, kind = facts.text("path"), facts.text("kind")
    if kind is None:
        return failed(f"{path} is not there", "a directory", f"mount the disk, and mkdir -p {path}")
    if kind != "directory":
        return failed(f"{path} is a {kind}", "a directory", f"move it away, and mkdir -p {path}")
    return judge_writing(facts)


def judge_writing(facts: Facts) -> Outcome:
    """Of a directory in which the probe has tried to write."""
    path, error = facts.text("path"), facts.text("write_error")
    if facts.flag("writable") or error in ("ENOSPC", "EDQUOT"):
        return passed(f"{path} is writable", "writable")
    mount = facts.inner("mount")
    if error == "EROFS" or (mount is not None and "ro" in (mount.text("options") or "").split(",")):
        mend = "the kernel remounts a disk read-only after errors: look at dmesg, check the disk, mount it anew"
        return failed(f"{path} is mounted read-only", "writable", mend)
    mend = f"let this user write there: chown or chmod {path}"
    return failed(f"{path} is not writable: {facts.text('write_reason')}", "writable", mend)


def kind(facts: Facts, context: Context) -> Outcome:
    """Whether it is a disk at all, and this machine's."""
    mount = _mount(facts)
    if mount is None:
        return NO_PATH if facts.text("path") is None else skipped("there is no such directory")
    name, point = mount.text("type") or "", mount.text("point")
    if is_network(name):
        mend = "give a path on the node's own disk in cluster.yaml, or mount that disk there"
        return failed(f"{name} at {point}", "a local file system", mend)
    if name in ("tmpfs", "ramfs"):
        return warning(f"{name} at {point}", "a disk", "what is written there takes memory from the job: mount a disk")
    return passed(f"{name} at {point}", "a local file system")


def is_network(name: str) -> bool:
    """Whether a file system of that type is served by other machines."""
    return name in NETWORK_KINDS or name.removeprefix("fuse.") in NETWORK_KINDS


def space(facts: Facts, context: Context) -> Outcome:
    """Room and inodes."""
    return NO_PATH if facts.text("path") is None else judge_space(facts, context.thresholds)


def judge_space(facts: Facts, thresholds: Thresholds) -> Outcome:
    """Room and inodes of the file system that a path is on."""
    least = thresholds.get("disk-free").value
    free, total, path = facts.number("free"), facts.number("total"), facts.text("path")
    if free is None or not total:
        return skipped("there is no such directory")
    percent = 100 * free / total
    value = f"{percent:.0f} % of {total / 1e9:,.0f} GB free ({free / 1e9:,.1f} GB)"
    if percent < least:
        mend = f"remove what ended jobs left: glmforge cluster clean; du -xh {path} | sort -h"
        return failed(value, f"at least {least:g} %", mend)
    inodes, inodes_free = facts.number("inodes"), facts.number("inodes_free")
    if inodes and inodes_free is not None and 100 * inodes_free / inodes < least:
        mend = f"many small files lie there: du --inodes -x {path} | sort -n"
        return failed(f"{int(inodes_free):,} of {int(inodes):,} inodes free", f"at least {least:g} %", mend)
    return passed(value, f"at least {least:g} %")


def size(facts: Mapping[str, Facts], context: Context) -> Mapping[str, Outcome]:
    """Nodes are alike, so their disks should be: one that is smaller lacks a disk of its array."""
    sizes: dict[str, float] = {}
    outcomes: dict[str, Outcome] = {}
    for host, of_host in facts.items():
        try:
            total = of_host.number("total") if of_host.text("path") is not None else None
        except FactError as error:
            outcomes[host] = failed(f"nothing is known: {error}", "", "is its python3 at least 3.8?")
            continue
        if total is None:
            outcomes[host] = skipped("no local disk is known")
        else:
            sizes[host] = total / 1e9
    usual = median(sizes.values()) if sizes else 0
    threshold = f"at least {_SMALLER:.0%} of {usual:,.0f} GB, as on the others"
    for host, found in sizes.items():
        value = f"{found:,.0f} GB"
        is_small = found < _SMALLER * usual
        outcomes[host] = warning(value, threshold, _SIZE_MEND) if is_small else passed(value, threshold)
    return outcomes


def _mount(facts: Facts) -> Facts | None:
    return None if facts.text("path") is None else facts.inner("mount")


CHECKS = (
    Check("disk.local", "local_path is there and writable", Level.QUICK, "disk", judge=local),
    Check("disk.kind", "local_path is on a disk of the node's own", Level.QUICK, "disk", judge=kind),
    Check("disk.space", "room and inodes in local_path", Level.QUICK, "disk", judge=space),
    Check("disk.size", "local_path is as large as on the other nodes", Level.STANDARD, "disk", compare=size),
)
