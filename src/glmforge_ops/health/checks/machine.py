"""The machine itself: clock, memory, limits of processes, its log, and processes that should not be there."""

from __future__ import annotations

import os
import re
import time
from typing import Any

from glmforge_ops.health.checks.check import (
    UNLIMITED,
    Context,
    Facts,
    Outcome,
    alike,
    compare,
    failed,
    passed,
    rule,
    skipped,
)
from glmforge_ops.health.checks.node import (
    at,
    command_of,
    is_orphan,
    is_rank,
    names_in,
    read_number,
    read_text,
    run,
    stat_of,
)

GIB = 1 << 30
UNREADABLE = skipped("the kernel's log cannot be read", "run the check as root, or set kernel.dmesg_restrict to 0")


def clock(cluster: Facts) -> dict[str, Any]:
    """Whether a time server keeps the clock. The node's time comes with every answer."""
    if (tracking := run("chronyc", "-n", "tracking")) is not None:
        return {"kept": "kept" if re.search(r"Leap status\s*:\s*(?!Not synch)\w", tracking) else "not kept"}
    answer = (run("timedatectl", "show", "-p", "NTPSynchronized", "--value") or "").strip()
    return {"kept": {"yes": "kept", "no": "not kept"}.get(answer)}


def memory(cluster: Facts) -> dict[str, Any]:
    """In GiB and shares; errors that memory controllers counted; `/dev/shm`."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    info = {name: int(value) * 1024 / GIB for name, value in lines}
    edac = "/sys/devices/system/edac/mc"
    controllers = [name for name in names_in(edac) if re.fullmatch(r"mc\d+", name)]
    errors = sum(read_number(f"{edac}/{each}/ue_count") or 0 for each in controllers) if controllers else None
    try:
        room = os.statvfs(at("/dev/shm"))
        shm, shm_used = room.f_blocks * room.f_frsize / GIB, 1 - room.f_bavail / max(room.f_blocks, 1)
    except OSError:
        shm = shm_used = 0.0
    return {"total": info.get("MemTotal"), "available": info["MemAvailable"] / info["MemTotal"] if info else None,
            "uncorrected": errors, "shm": shm, "shm_used": shm_used}  # fmt: skip


def limits(cluster: Facts) -> dict[str, Any]:
    """Soft limits of a process of this user, which it may raise up to the hard ones, but torch does not."""
    rows = re.findall(r"^Max (.+?)\s+(\d+|unlimited)\s", read_text("/proc/self/limits") or "", re.MULTILINE)
    found = {name: UNLIMITED if word == "unlimited" else int(word) for name, word in rows}
    locked = found.get("locked memory")
    return {"files": found.get("open files"), "processes": found.get("processes"),
            "locked": locked if locked in (None, UNLIMITED) else locked / GIB}  # fmt: skip


def kernel_log(cluster: Facts) -> dict[str, Any]:
    """Errors of hardware and memory since the machine started, with their age in hours; often for root only."""
    text = run("dmesg") or run("journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager", "-q")
    patterns = {"xids": r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)",
                "out_of_memory": r"Out of memory: Kill|oom-kill:|Memory cgroup out of memory",
                "machine_checks": r"\[Hardware Error\]|mce: .*Machine Check|EDAC .*\bUE\b"}  # fmt: skip
    uptime = read_number("/proc/uptime") or 0.0
    found: dict[str, list[Any]] = {name: [] for name in patterns}
    for line in (text or "").splitlines():
        logged = re.search(r"\[\s*(\d+\.\d+)\]", line)
        for name, pattern in patterns.items():
            if event := re.search(pattern, line):
                age = (uptime - float(logged[1])) / 3600 if logged else 0.0
                found[name].append({"age": age, "line": line[:300], "words": event.groups()})
    return {"readable": bool(text), **{name: events[-100:] for name, events in found.items()}}


def recent(kind: str, facts: Facts, context: Context) -> Any:
    """Events of the kernel's log that still count."""
    return [event for event in facts[kind] if event["age"] <= context.limit("kernel-log-hours")]


def _last(kind: str) -> Any:
    def read(facts: Facts, context: Context) -> Any:
        found = recent(kind, facts, context)
        return UNREADABLE if not facts["readable"] else f"{len(found)}, {found[-1]['line']}" if found else "none"

    return read


def processes(cluster: Facts) -> dict[str, Any]:
    """Ranks without a launcher, processes that hang in the kernel, load. A container's are not looked at."""
    host = _namespace("self")
    pids = [int(name) for name in names_in("/proc") if name.isdigit() and _namespace(name) in (None, host)]
    states = {pid: (stat_of(pid) or [""])[0] for pid in pids}
    waiting = [pid for pid in pids if states[pid] == "D"]
    if waiting:  # a process that reads from a disk is in this state for a moment
        time.sleep(0.5)
    stuck = [pid for pid in waiting if stat_of(pid)[:1] == ["D"]]
    stale = [pid for pid in pids if states[pid] != "Z" and is_rank(pid) and is_orphan(pid)]
    load = read_number("/proc/loadavg")
    return {"stale": _named(stale), "pids": " ".join(map(str, stale[:50])), "stuck": _named(stuck),
            "load": None if load is None else load / len(os.sched_getaffinity(0))}  # fmt: skip


def _named(pids: list[int]) -> str:
    return "; ".join(f"{command_of(pid)} (pid {pid})" for pid in pids[:3]) + (" ..." if pids[3:] else "") or "none"


def _namespace(pid: str) -> str | None:
    """Which host name it sees."""
    try:
        return os.readlink(at(f"/proc/{pid}/ns/uts"))
    except OSError:
        return None


def _offset(facts: Facts, context: Context) -> Any:
    """The node's clock minus ours lies between two bounds: it started after we asked, and ended before we knew."""
    asked, started, ended, answered = facts["clock"]
    return None if started is None else (float(ended) - answered, float(started) - asked)


def skew(values: dict[str, Any], context: Context) -> dict[str, Outcome]:
    """Off from what most nodes agree on: ours may be the wrong one. Asking through ssh takes a while, so only bounds
    that exclude agreement are held against a node.
    """
    limit, bounds = context.limit("clock-skew"), [*values.values(), (0.0, 0.0)]
    edges = [edge for pair in bounds for edge in pair]
    agreed = max(edges, key=lambda edge: (sum(low <= edge <= high for low, high in bounds), -abs(edge)))
    threshold = f"within {limit:g} s of most nodes"
    fix = "start chrony or systemd-timesyncd there ('chronyc makestep' sets the clock at once)"
    outcomes = {}
    for host, (low, high) in values.items():
        off, most = max(low - agreed, agreed - high, 0.0), max(high - agreed, agreed - low)
        if low > high or off > limit:
            way = "changed meanwhile" if low > high else "ahead" if low > agreed else "behind"
            outcomes[host] = failed(f"at least {off:,.1f} s {way}", threshold, fix)
        elif most > limit:
            outcomes[host] = skipped(f"the answer took too long to tell more than within {most:.1f} s")
        else:
            outcomes[host] = passed(f"within {most:.1f} s", threshold)
    return outcomes


# fmt: off
compare("clock.skew", "quick", clock, "the same time on all nodes", _offset, skew, "the node did not send its time",
        tuple)
rule("clock.synchronised", "standard", clock, "a time server keeps the clock", "kept", want="kept",
     fix="start chrony or systemd-timesyncd, with servers it can reach")
rule("processes.stale", "quick", processes, "ranks of ended jobs, which hold ports, memory and GPUs", "stale",
     want="none", bad=failed, fix="end them: kill {pids}")
rule("processes.stuck", "quick", processes, "processes that hang in the kernel for half a second", "stuck", want="none",
     fix="look at /proc/PID/stack: a network file system that does not answer, or a disk; then at the kernel's log")
rule("processes.load", "quick", processes, "load for each CPU", "load", most="load-per-cpu",
     fix="look at 'top': another job, or something left over")
alike("memory.total", "quick", memory, "memory as on the other nodes",
      lambda facts, _: f"{8 * round(facts['total'] / 8)} GiB",
      "look at 'dmidecode -t memory' and the BIOS for a missing module: the others have {expected}")
rule("memory.available", "quick", memory, "free memory", "available", least="memory-available",
     fix="look at 'ps aux --sort=-rss' and at what an ended job left in /dev/shm")
rule("memory.errors", "quick", memory, "memory errors that could not be corrected", "uncorrected", want=0, bad=failed,
     fix="'ras-mc-ctl --errors' names the module; have it replaced", absent="no EDAC")
rule("memory.shm", "quick", memory, "size of /dev/shm", "shm", least="shm-size", bad=failed,
     fix="'mount -o remount,size=8G /dev/shm'; in a container --shm-size=8g or --ipc=host")
rule("memory.shm-use", "quick", memory, "how much of /dev/shm is in use", "shm_used", most="shm-use",
     fix="remove what ended jobs left: 'ls -l /dev/shm', 'glmforge cluster clean'")
rule("memory.machine-checks", "quick", kernel_log, "hardware errors in the kernel's log", _last("machine_checks"),
     want="none", bad=failed, fix="'ras-mc-ctl --errors' or 'mcelog' names the part; have it replaced")
rule("memory.out-of-memory", "quick", kernel_log, "processes killed for lack of memory", _last("out_of_memory"),
     want="none", fix="look in the kernel's log at what was killed and what held the memory")
_RAISE = " in the job script; if that fails, in /etc/security/limits.conf"
rule("limits.files", "quick", limits, "open files of a process", "files", least="fd-limit",
     fix="ulimit -n 65536" + _RAISE)
rule("limits.processes", "quick", limits, "processes of a user", "processes", least="process-limit",
     fix="ulimit -u 32768" + _RAISE)
rule("limits.locked-memory", "quick", limits, "memory that a process may lock, for RDMA", "locked",
     least="locked-memory", fix="ulimit -l unlimited" + _RAISE)
# fmt: on
