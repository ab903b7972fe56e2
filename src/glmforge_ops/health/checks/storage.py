"""Directories of a job: each node's own fast disk, shared storage, checkpoints; there, writable, with room, fast, and
the shared one really one for all.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
import time
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
    Outcome,
    Session,
    act,
    failed,
    held,
    judge_each,
    passed,
    rule,
    skipped,
    warning,
)
from glmforge_ops.health.checks.node import call, find_program, names_in, read_text

_CRITICAL = ("no spare blocks", "temperature", "unreliable", "read-only", "backup power", "memory region")
"""Bits of an NVMe disk's critical warning: NVM Express base specification 1.4, 5.14.1.2, byte 0."""


def local(cluster: Facts) -> dict[str, Any]:
    """The node's own disk."""
    return _place(cluster["local_path"])


def shared(cluster: Facts) -> dict[str, Any]:
    """Storage that all nodes share."""
    return _place(cluster["shared_path"])


def checkpoints(cluster: Facts) -> dict[str, Any]:
    """Where checkpoints are written."""
    return _place(cluster["checkpoint_path"] or cluster["shared_path"])


def _place(path: str | None) -> dict[str, Any]:
    """What is at a path: file system, room, whether a file can be written."""
    if path is None or not os.path.isdir(path):
        missing = f"{path} is {'not a directory' if path is not None and os.path.exists(path) else 'not there'}"
        return {"path": path, "there": False, "state": None if path is None else missing}
    return {"path": path, "there": True, **mount_of(path), "state": _try_writing(path)}


def mount_of(path: str) -> dict[str, Any]:
    """The mount that a path is on, the last of those whose mount point is the longest that leads to it; its room."""
    real, best = os.path.realpath(path), ["/", "", "", ""]
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), [*right.split(" "), ""]
        point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4])
        if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
            best = [point, kinds[0], kinds[1], f"{fields[5]},{kinds[2]}"]
    room = os.statvfs(path)
    free = min(room.f_bavail / max(room.f_blocks, 1), room.f_favail / room.f_files if room.f_files else 1.0)
    return dict(zip(("point", "type", "source", "options"), best, strict=True)) | {
        "total_gb": room.f_blocks * room.f_frsize / 1e9, "free_gb": room.f_bavail * room.f_frsize / 1e9,
        "free": 100 * free,
    }  # fmt: skip


def _try_writing(path: str) -> str:
    """Make, write, rename and remove a small file as checkpoints are written; a full disk is for another check."""
    file = f"{path}/.glmforge-check-{os.urandom(8).hex()}"
    try:
        with open(file, "xb") as stream:
            stream.write(b"glmforge\n" * 512)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(file, file + ".renamed")
        os.unlink(file + ".renamed")
    except OSError as error:
        if os.path.exists(file):
            os.unlink(file)
        full = (error.strerror or "") in ("No space left on device", "Disk quota exceeded")
        return "writable" if full else f"{path} is not writable: {error.strerror}"
    return "writable"


def mounts(cluster: Facts) -> dict[str, Any]:
    """File systems that a job uses, for `glmforge health`."""
    wanted = ["/", os.path.expanduser("~"), tempfile.gettempdir(), os.getcwd()]
    wanted += [cluster[name] for name in ("local_path", "shared_path", "checkpoint_path") if cluster[name]]
    found: dict[str, Any] = {}
    for path in filter(os.path.isdir, wanted):
        mount = mount_of(path)
        found.setdefault(mount["point"], mount | {"paths": []})["paths"].append(path)
    return {"mounts": list(found.values()), "missing": [path for path in wanted if not os.path.isdir(path)]}


def disk_speed(cluster: Facts) -> dict[str, Any]:
    """Of local_path."""
    return _speeds(cluster["local_path"])


def shared_speed(cluster: Facts) -> dict[str, Any]:
    """Of shared_path, on all nodes at once."""
    return _speeds(cluster["shared_path"])


def _speeds(path: str | None) -> dict[str, Any]:
    """By fio, for two seconds each with a file of 64 MiB: GB/s written and read, small reads per second."""
    if path is None or not os.path.isdir(path) or not find_program("fio"):
        return {"speeds": []}
    device = os.path.basename(mount_of(path)["source"])
    folder, found = tempfile.mkdtemp(prefix=".glmforge-check-", dir=path), []
    try:
        for way, kind, block in (("write", "write", "1M"), ("read", "read", "1M"), ("iops", "randread", "4k")):
            command = [
                "fio",
                "--name=check",
                f"--filename={folder}/file",
                "--size=64M",
                f"--rw={kind}",
                f"--bs={block}",
            ]
            command += ["--runtime=2", "--time_based", "--end_fsync=1", "--output-format=json"]
            status, printed, said = call(*command, "--ioengine=libaio", "--iodepth=32", "--direct=1", limit_s=60)
            if status != 0:  # not every file system goes past the page cache
                status, printed, said = call(*command, limit_s=60)
            if status != 0:
                raise ValueError(f"fio: {said}")
            job = json.loads(printed[printed.index("{") :])["jobs"][0]["write" if way == "write" else "read"]
            found.append(
                {"way": way, "speed": job["iops"] if way == "iops" else job["bw_bytes"] / 1e9, "device": device}
            )
        return {"speeds": found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def nvme(cluster: Facts) -> dict[str, Any]:
    """The health of each NVMe disk, by nvme-cli or smartctl."""
    return {"disks": [_disk(name) for name in names_in("/sys/class/nvme")]}


def _disk(name: str) -> dict[str, Any]:
    tool = ("nvme", "smart-log", "-o", "json") if find_program("nvme") else ("smartctl", "-a", "-j")
    _, printed, _ = call(*tool, f"/dev/{name}")
    log = json.loads(printed) if printed.startswith("{") else {}
    log = log.get("nvme_smart_health_information_log", log)
    critical, state = log.get("critical_warning"), read_text(f"/sys/class/nvme/{name}/state") or "live"
    critical = critical["value"] if isinstance(critical, dict) else critical
    wrong = [text for bit, text in enumerate(_CRITICAL) if (critical or 0) >> bit & 1]
    wrong += ["media errors"] if log.get("media_errors") else []
    health = ", ".join(wrong) or (None if critical is None else "healthy")
    return {"name": name, "health": health if state == "live" else state}


# fmt: off
_LOCAL: dict[str, Any] = {"absent": "no local_path is given, or it is not there"}
_MOUNT = "look at /etc/fstab, dmesg (errors make a disk read-only) and the owner of {path}: mount, mkdir -p, chown"


def _kind(facts: Facts, context: Context) -> Any:
    from glmforge_ops.setup.facts import NETWORK_TYPES

    kinds = {facts.get("type"), f"{facts.get('type')}".removeprefix("fuse.")}
    value = f"{facts['type']} at {facts['point']}" if facts["there"] else None
    if value is None or facts["type"] not in ("tmpfs", "ramfs"):
        return value and ("served by other machines" if kinds & {*NETWORK_TYPES} else "local")
    return warning(value, "a disk", "what is written there takes memory from the job: mount a disk")


def _mounted(facts: Facts, context: Context) -> str | None:
    return f"{facts['path']} lies on the root file system" if facts.get("point") == "/" else facts["state"]


def _room(facts: Facts, context: Context) -> Outcome | None:
    planned = context.cluster.planned_checkpoint_gb
    if not facts["there"] or planned is None:
        return None
    fix = "remove old checkpoints, or keep fewer: checkpoint.keep_last, keep_every_steps"
    return held(facts["free_gb"] >= planned, f"{facts['free_gb']:,.1f} GB free", f"at least {planned:,.1f} GB", fix)


def _of_speeds(facts: Facts, context: Context) -> dict[str, Facts]:
    return {speed["way"]: speed for speed in facts["speeds"]}


rule("disk.local", "quick", local, "local_path is there and writable", "state", want="writable", bad=failed, fix=_MOUNT,
     **_LOCAL)
rule("disk.kind", "quick", local, "local_path is on a disk of the node", _kind, want="local", bad=failed,
     fix="give a path on a disk of the node in cluster.yaml, or mount one there: {point} is {type}", **_LOCAL)
rule("disk.space", "quick", local, "room and inodes in local_path", lambda facts, _: facts.get("free"),
     least="disk-free", bad=failed,
     fix="remove what ended jobs left: glmforge cluster clean; du -xh {path} | sort -h; df -i", **_LOCAL)
rule("nvme.health", "standard", nvme, "NVMe disks are live and without errors", "health", want="healthy", bad=failed,
     each=lambda facts, _: {disk["name"]: disk for disk in facts["disks"]}, none="no NVMe disk",
     fix="look at dmesg; reseat or replace it before it holds checkpoints",
     absent="not reported: install nvme-cli, and run the check as root")
rule("disk.speed", "thorough", disk_speed, "bandwidth and small reads of local_path, by fio", "speed",
     least="disk-{way}", device="device", bad=failed, none="no local_path, or fio is not installed", each=_of_speeds,
     fix="look for other users of the disk, its temperature and wear (nvme.health), its PCIe link, a rebuilding RAID")
rule("shared.mounted", "quick", shared, "shared_path is mounted and writable", _mounted, want="writable", bad=failed,
     fix=_MOUNT, absent="no shared_path is given")
rule("shared.speed", "thorough", shared_speed, "bandwidth and small reads of shared_path, all nodes at once, by fio",
     "speed", least="shared-{way}", bad=failed, none="no shared_path, or fio is not installed", each=_of_speeds,
     fix="look at the servers' load and the node's link to them; stripe large files; stage data to local_path")
rule("checkpoints.write", "quick", checkpoints, "checkpoints can be written by every node",
     lambda facts, context: context.cluster.checkpoint_path and facts["state"], want="writable", bad=failed, fix=_MOUNT,
     absent="no checkpoint_path is given; for shared_path see shared.mounted")
rule("checkpoints.space", "quick", checkpoints, "the planned checkpoints fit", _room,
     absent="planned_checkpoint_gb or its directory is not given")
# fmt: on


def put(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Leave a directory that the others look for."""
    os.makedirs(f"{cluster['shared_path']}/{arguments['folder']}")
    return {}


def see(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Whether it appears within ten seconds."""
    folder, deadline = f"{cluster['shared_path']}/{arguments['folder']}", time.monotonic() + 10.0
    while not os.path.isdir(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    return {"seen": os.path.isdir(folder)}


def remove(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """The directory of a check."""
    shutil.rmtree(f"{cluster['shared_path']}/{arguments['folder']}", ignore_errors=True)
    return {}


@act("shared.same", "standard", shared, "shared_path is one directory for all nodes")
def same(session: Session) -> dict[str, Outcome]:
    """What the first node leaves, all others see. If no other one sees it, the first node has another directory."""
    known, outcomes = session.known(shared), session.everywhere(skipped("takes two nodes that have shared_path"))
    hosts = [host for host, facts in known.items() if not isinstance(facts, Outcome) and facts.get("there")]
    if len(hosts) < 2 or session.context.cluster.shared_path is None:
        return outcomes
    first, others = hosts[0], hosts[1:]
    arguments = {"folder": f".glmforge-check-{secrets.token_hex(6)}"}
    session.ask(put, {first: arguments}, 30.0)
    answers = session.ask(see, dict.fromkeys(others, arguments), 40.0)
    session.ask(remove, {first: arguments}, 60.0)

    def judge_seen(host: str, facts: Facts) -> Outcome:
        fix = "mount the shared storage there: look at /etc/fstab and findmnt"
        if facts["seen"]:
            return passed("one directory for all")
        return failed("files of the other nodes do not appear there", "one directory for all", fix)

    judged = judge_each(answers, judge_seen)
    lost = [outcome for outcome in judged.values() if outcome.fix]
    if len(lost) == len(judged) > 1:
        return outcomes | dict.fromkeys(others, passed("one directory for all")) | {first: lost[0]}
    return outcomes | judged | {first: passed("one directory for all")}
