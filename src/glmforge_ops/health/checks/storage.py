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
from statistics import median
from typing import Any

from glmforge_ops.health.checks.check import (
    Answers,
    Context,
    Facts,
    Gather,
    Outcome,
    Session,
    act,
    compare,
    failed,
    judge_each,
    name_of,
    passed,
    ring,
    rule,
    skipped,
    usual_size,
    warning,
)  # fmt: skip
from glmforge_ops.health.checks.node import call, find_program, names_in, read_text

_MIB = 1 << 20
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
        missing = f"{path} is {'no directory' if path is not None and os.path.exists(path) else 'not there'}"
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
    inodes = 100 * room.f_favail / room.f_files if room.f_files else 100.0
    return dict(zip(("point", "type", "source", "options"), best, strict=True)) | {
        "total_gb": room.f_blocks * room.f_frsize / 1e9, "free_gb": room.f_bavail * room.f_frsize / 1e9,
        "free": 100 * room.f_bavail / max(room.f_blocks, 1), "free_inodes": inodes,
    }  # fmt: skip


def _try_writing(path: str) -> str:
    """Make, write, rename and remove a small file as checkpoints are written. A full disk is another check's matter."""
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
    """By fio on a file of 256 MiB in local_path, removed afterwards: GB/s read and written, small reads per second."""
    path = cluster["local_path"]
    if path is None or not os.path.isdir(path) or not find_program("fio"):
        return {"speeds": []}
    if mount_of(path)["free_gb"] < 0.6:
        raise ValueError("there is no room for a file of 256 MiB")
    folder = tempfile.mkdtemp(prefix=".glmforge-check-", dir=path)
    try:
        file, device = f"{folder}/file", os.path.basename(mount_of(path)["source"])
        speeds = {"write": _fio(file, "write", "1M", "bw_bytes") / 1e9,
                  "read": _fio(file, "read", "1M", "bw_bytes") / 1e9,
                  "iops": _fio(file, "randread", "4k", "iops")}  # fmt: skip
        return {"speeds": [{"way": way, "speed": speed, "device": device} for way, speed in speeds.items()]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fio(file: str, kind: str, block: str, what: str) -> float:
    """Past the page cache where the file system can do that. Raises `ValueError`."""
    said = ""
    for direct in (1, 0):
        status, printed, said = call(
            "fio", "--name=check", f"--filename={file}", "--size=256M", f"--rw={kind}", f"--bs={block}", "--runtime=2",
            "--time_based", "--ioengine=libaio", "--iodepth=32", f"--direct={direct}", "--output-format=json",
        )  # fmt: skip
        if status == 0:
            job = json.loads(printed[printed.index("{") :])["jobs"][0]  # notes may come before its JSON
            return float(job["write" if kind == "write" else "read"][what])
    raise ValueError(f"fio: {said}")


def nvme(cluster: Facts) -> dict[str, Any]:
    """What each NVMe disk says of itself, through nvme-cli or smartctl."""
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
    used = log.get("percentage_used", log.get("percent_used"))  # nvme-cli changed the name with 2.0
    return {"name": name, "health": health if state == "live" else state, "used": used}


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


def _room(facts: Facts, context: Context) -> Outcome:
    planned = context.cluster.planned_checkpoint_gb
    if not facts["there"] or planned is None:
        return skipped("planned_checkpoint_gb or its directory is not given", "take it from 'glmforge plan'")
    value, threshold = f"{facts['free_gb']:,.1f} GB free", f"at least {planned:,.1f} GB, as planned"
    fix = "remove old checkpoints, or keep fewer: checkpoint.keep_last, keep_every_steps"
    return passed(value, threshold) if facts["free_gb"] >= planned else failed(value, threshold, fix)


rule("disk.local", "quick", local, "local_path is there and writable", "state", want="writable", bad=failed, fix=_MOUNT,
     **_LOCAL)
rule("disk.kind", "quick", local, "local_path is on a disk of the node's own", _kind, want="local", bad=failed,
     fix="give a path on the node's own disk in cluster.yaml, or mount that disk there: {point} is {type}", **_LOCAL)
rule("disk.space", "quick", local, "room in local_path", lambda facts, _: facts.get("free"), least="disk-free",
     bad=failed, fix="remove what ended jobs left: glmforge cluster clean; du -xh {path} | sort -h", **_LOCAL)
rule("disk.inodes", "quick", local, "inodes in local_path", lambda facts, _: facts.get("free_inodes"),
     least="disk-free", bad=failed, fix="many small files are there: du --inodes -x {path} | sort -n", **_LOCAL)
compare("disk.size", "standard", local, "local_path as large as on the others",
        lambda facts, _: facts.get("total_gb"), kind=float)(
    lambda sizes, _: usual_size(sizes, 0.9, "GB", "look for a disk that is missing: lsblk, cat /proc/mdstat"))
_NVME: dict[str, Any] = {"each": lambda facts, _: {disk["name"]: disk for disk in facts["disks"]},
                         "none": "no NVMe disk", "absent": "not reported: install nvme-cli, and run the check as root"}
rule("nvme.health", "standard", nvme, "NVMe disks are live and without errors", "health", want="healthy", bad=failed,
     fix="look at dmesg; reseat or replace it before it holds checkpoints", **_NVME)
rule("nvme.wear", "standard", nvme, "how worn NVMe disks are", "used", most="nvme-wear", fix="plan its replacement",
     **_NVME)
rule("disk.speed", "thorough", disk_speed, "bandwidth and small reads of local_path, by fio", "speed",
     least="disk-{way}", device="device", bad=failed, none="no local_path, or fio is not installed",
     each=lambda facts, _: {speed["way"]: speed for speed in facts["speeds"]},
     fix="look for other users of the disk, its temperature and wear (nvme.health), its PCIe link, a rebuilding RAID")
rule("shared.mounted", "quick", shared, "shared_path is mounted and writable", _mounted, want="writable", bad=failed,
     fix=_MOUNT, absent="no shared_path is given")
rule("checkpoints.write", "quick", checkpoints, "checkpoints can be written by every node",
     lambda facts, context: context.cluster.checkpoint_path and facts["state"], want="writable", bad=failed, fix=_MOUNT,
     absent="no checkpoint_path is given; for shared_path see shared.mounted")
rule("checkpoints.space", "quick", checkpoints, "the planned checkpoints fit", _room, fix="")
# fmt: on


def _options(facts: Facts, context: Context) -> Any:
    """What is known to hurt (nfs(5)): a soft mount answers a slow server with errors, and can lose data silently."""
    if not facts["there"] or facts["type"] not in ("nfs", "nfs4"):
        return facts.get("type")
    given = facts["options"].split(",")
    bad = [option for option in ("soft", "softerr", "noac", "actimeo=0") if option in given]
    bad += [] if any(re.fullmatch(r"nconnect=\d+", option) for option in given) else ["no nconnect"]
    fix = "mount it hard, with nconnect=8 and attribute caching; one server serves all: stage data to local_path"
    threshold = "hard, nconnect, attribute cache"
    return (failed if "soft" in given else warning)(f"NFS, {', '.join(bad) or 'one server'}", threshold, fix)


rule("shared.options", "standard", shared, "how shared_path is mounted", _options, want=lambda facts, _: facts["type"],
     fix="", absent="no shared_path is given")  # fmt: skip


def put(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Leave a file that the others look for."""
    with open(_file(cluster, arguments), "w") as stream:
        stream.write(arguments["token"])
        stream.flush()
        os.fsync(stream.fileno())
    return {}


def see(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Which of the files of others are there within ten seconds, with the text that they should have."""
    found, deadline = [], time.monotonic() + 10.0
    for name, token in arguments["tokens"].items():
        while read_text(_file(cluster, {**arguments, "name": name})) != token and time.monotonic() < deadline:
            time.sleep(0.2)
        found += [name] if read_text(_file(cluster, {**arguments, "name": name})) == token else []
    return {"seen": found}


def remove(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """The directory of a check."""
    shutil.rmtree(f"{cluster['shared_path']}/{arguments['folder']}", ignore_errors=True)
    return {}


def small_files(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Milliseconds of making, looking up and removing a small file: the median of 50."""
    times = []
    for number in range(50):
        file, began = f"{_file(cluster, arguments)}-{number}", time.monotonic()
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.stat(file)
        os.unlink(file)
        times.append(time.monotonic() - began)
    return {"milliseconds": 1000 * median(times)}


def write(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """GB/s of writing 256 MiB through to the storage, together with the other nodes."""
    block, began = os.urandom(_MIB), wait_together(arguments)
    with open(_file(cluster, arguments), "wb", buffering=0) as stream:
        for _ in range(256):
            stream.write(block)
        os.fsync(stream.fileno())
    return {"rate": 256 * _MIB / 1e9 / (time.monotonic() - began)}


def read(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """GB/s of reading the file of another node, which no cache here knows."""
    total, began = 0, wait_together(arguments)
    with open(_file(cluster, arguments), "rb", buffering=0) as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := stream.read(_MIB):
            total += len(chunk)
    return {"rate": total / 1e9 / (time.monotonic() - began)}


def _file(cluster: Facts, arguments: Facts) -> str:
    folder = f"{cluster['shared_path']}/{arguments['folder']}"
    os.makedirs(folder, exist_ok=True)
    return f"{folder}/{arguments['name']}"


def start_together(hosts: list[str]) -> dict[str, float]:
    """Arguments for what all hosts begin at the same moment, by their clocks; a wrong clock begins at once or late."""
    wait_s = 2.0 + 0.02 * len(hosts) if len(hosts) > 1 else 0.0
    return {"start_at": time.time() + wait_s, "wait_s": 2 * wait_s}


def wait_together(arguments: Facts) -> float:
    """Until the common moment; returns the time then."""
    time.sleep(max(0.0, min(arguments["start_at"] - time.time(), arguments["wait_s"])))
    return time.monotonic()


class _Shared:
    """Hosts of a session that have the shared directory, and a directory of a check in it, removed in the end."""

    def __init__(self, session: Session) -> None:
        self.session, self.folder = session, f".glmforge-check-{secrets.token_hex(6)}"
        is_given = session.context.cluster.shared_path is not None
        known = session.known(shared)[0]
        self.hosts = [host for host in session.hosts if is_given and known.get(host, {}).get("there")]
        self.others = session.everywhere(skipped("no shared_path is given, or it is not there"))

    def ask(self, function: Gather, names: Facts, **more: Any) -> Answers:
        arguments = {host: {"folder": self.folder, "name": name_of(name), **more} for host, name in names.items()}
        return self.session.ask(function, arguments, 120.0)

    def __enter__(self) -> _Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask(remove, {host: host for host in self.hosts})


@act("shared.same", "standard", shared, "shared_path is one directory for all nodes")
def same(session: Session) -> dict[str, Outcome]:
    """Every node leaves a file and looks for those of its neighbour and of the first node. Who does not see the first
    one's has another directory; the first node itself, if nobody else sees its file.
    """
    with _Shared(session) as place:
        hosts, following = place.hosts, ring(place.hosts)
        if not following:
            return session.everywhere(skipped("takes two nodes that have shared_path"))
        tokens = {name_of(host): secrets.token_hex(8) for host in hosts}
        first, folder = name_of(hosts[0]), place.folder
        given = {host: {"folder": folder, "name": name_of(host), "token": tokens[name_of(host)]} for host in hosts}
        told, lost = session.ask(put, given, 30.0)
        wanted = {host: {name: tokens[name] for name in {first, name_of(following[host])}} for host in told}
        asked = {host: {"folder": folder, "tokens": of_host} for host, of_host in wanted.items()}
        seen, unseen = session.ask(see, asked, 40.0)
    first_seen = [host for host in hosts[1:] if first in seen.get(host, {}).get("seen", ())]

    def judge_seen(host: str, facts: Facts) -> Outcome:
        is_alone = len(hosts) > 2 and not first_seen
        is_lost = is_alone if host == hosts[0] else first not in facts["seen"] and not is_alone
        fix = "mount the shared storage there: look at /etc/fstab and findmnt"
        bad = failed("files of the other nodes are not seen there", "one directory for all", fix)
        return bad if is_lost else passed("one directory for all")

    return place.others | lost | judge_each((seen, unseen), judge_seen)


@act("shared.latency", "standard", shared, "small files in shared_path, on all nodes at once")
def latency(session: Session) -> dict[str, Outcome]:
    """By making, looking up and removing some."""
    most = session.context.limit("shared-latency")

    def judge_time(host: str, facts: Facts) -> Outcome:
        value, threshold = f"{facts['milliseconds']:.2f} ms to make and remove a file", f"at most {most:g} ms"
        fix = "look at the metadata server's load, and for a job that opens many small files"
        return passed(value, threshold) if facts["milliseconds"] <= most else warning(value, threshold, fix)

    with _Shared(session) as place:
        return place.others | judge_each(place.ask(small_files, {host: host for host in place.hosts}), judge_time)


@act("shared.speed", "thorough", shared, "bandwidth of shared_path from all nodes at once")
def speed(session: Session) -> dict[str, Outcome]:
    """Each reads what its neighbour has written."""
    with _Shared(session) as place:
        hosts = place.hosts
        written, lost = place.ask(write, {host: host for host in hosts}, **start_together(hosts))
        pairs = ring(list(written)) or {host: host for host in written}
        reading = place.ask(read, pairs, **start_together(hosts))
    share = session.context.limit("shared-share")

    def judge_rates(host: str, facts: Facts) -> Outcome:
        value, needs, slow = [], [], False
        for way, found, rates in (("write", written[host], written), ("read", facts, reading[0])):
            usual = median(each["rate"] for each in rates.values())
            least = max(session.context.limit(f"shared-{way}"), share * usual)
            slow |= found["rate"] < least
            value.append(f"{way}s {found['rate']:.2f} GB/s")
            needs.append(f"{way}s {least:.2g}")
        fix = "look at the servers' load and the node's link to them; stripe large files; stage data to local_path"
        threshold = f"{', '.join(needs)} GB/s a node with all at once"
        return failed(", ".join(value), threshold, fix) if slow else passed(", ".join(value), threshold)

    return place.others | lost | judge_each(reading, judge_rates)
