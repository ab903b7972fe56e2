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
    compare,
    failed,
    passed,
    rule,
    skipped,
    usual_size,
)  # fmt: skip
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
)  # fmt: skip

GIB = 1 << 30
UNREADABLE = skipped("the kernel's log cannot be read", "run the check as root, or set kernel.dmesg_restrict to 0")


def clock(cluster: Facts) -> dict[str, Any]:
    """Whether a time server keeps the clock. What time it is goes with every answer."""
    tracking = run("chronyc", "-n", "tracking")
    if tracking is not None:
        offset = re.search(r"System time\s*:\s*([\d.]+) seconds", tracking)
        kept = re.search(r"Leap status\s*:\s*(?!Not synch)\w", tracking) is not None
        return {"kept": "kept" if kept else "not kept", "offset": float(offset[1]) if offset else None}
    answer = (run("timedatectl", "show", "-p", "NTPSynchronized", "--value") or "").strip()
    return {"kept": {"yes": "kept", "no": "not kept"}.get(answer), "offset": None}


def memory(cluster: Facts) -> dict[str, Any]:
    """In GiB and shares; errors that memory controllers counted; `/dev/shm`."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB", read_text("/proc/meminfo") or "", re.MULTILINE)
    info = {name: int(value) * 1024 / GIB for name, value in lines}
    edac = "/sys/devices/system/edac/mc"
    controllers = [name for name in names_in(edac) if re.fullmatch(r"mc\d+", name)]
    counts = {kind: sum(read_number(f"{edac}/{each}/{kind}_count") or 0 for each in controllers) if controllers
              else None for kind in ("ce", "ue")}  # fmt: skip
    try:
        room = os.statvfs(at("/dev/shm"))
        shm, used = room.f_blocks * room.f_frsize / GIB, 1 - room.f_bavail / max(room.f_blocks, 1)
    except OSError:
        shm = used = 0.0
    return {"total": info.get("MemTotal"), "available": info["MemAvailable"] / info["MemTotal"] if info else None,
            "swap_used": info["SwapTotal"] - info["SwapFree"] if info else None, "corrected": counts["ce"],
            "uncorrected": counts["ue"], "shm": shm, "shm_used": used}  # fmt: skip


def limits(cluster: Facts) -> dict[str, Any]:
    """Soft limits of a process of this user, which it may raise up to the hard ones, but torch does not."""
    rows = re.findall(r"^Max (.+?)\s+(\d+|unlimited)\s", read_text("/proc/self/limits") or "", re.MULTILINE)
    found = {name: UNLIMITED if word == "unlimited" else int(word) for name, word in rows}
    found |= {name: found[name] / GIB for name in ("locked memory", "core file size")
              if found.get(name, UNLIMITED) != UNLIMITED}  # fmt: skip
    piped = (read_text("/proc/sys/kernel/core_pattern") or "").startswith("|")  # a program takes care of them
    return {"files": found.get("open files"), "processes": found.get("processes"),
            "locked": found.get("locked memory"), "core": 0 if piped else found.get("core file size")}  # fmt: skip


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
    """Ranks without a launcher, processes that hang in the kernel, zombies, load. A container's are not looked at."""
    host = _namespace("self")
    pids = [int(name) for name in names_in("/proc") if name.isdigit() and _namespace(name) in (None, host)]
    states = {pid: (stat_of(pid) or [""])[0] for pid in pids}
    waiting = [pid for pid in pids if states[pid] == "D"]
    if waiting:  # for a moment is nothing: a process that reads from a disk is
        time.sleep(0.5)
    stuck = [pid for pid in waiting if stat_of(pid)[:1] == ["D"]]
    stale = [pid for pid in pids if states[pid] != "Z" and is_rank(pid) and is_orphan(pid)]
    load = read_number("/proc/loadavg")
    return {
        "stale": _named(stale), "pids": " ".join(map(str, stale[:50])), "stuck": _named(stuck),
        "zombies": list(states.values()).count("Z"),
        "load": None if load is None else load / len(os.sched_getaffinity(0)),
    }  # fmt: skip


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


@compare("clock.skew", "quick", clock, "the same time on all nodes", _offset, "the node did not tell its time", tuple)
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
        if low > high:
            outcomes[host] = failed("its clock was set while it was asked", threshold, fix)
        elif off > limit:
            outcomes[host] = failed(f"at least {off:,.1f} s {'ahead' if low > agreed else 'behind'}", threshold, fix)
        elif most > limit:
            outcomes[host] = skipped(f"asking took too long to tell more than within {most:.1f} s")
        else:
            outcomes[host] = passed(f"within {most:.1f} s", threshold)
    return outcomes


# fmt: off
rule("clock.synchronised", "standard", clock, "a time server keeps the clock", "kept", want="kept",
     fix="start chrony or systemd-timesyncd, with servers it can reach")
rule("clock.offset", "standard", clock, "distance from the time server", "offset", most="clock-offset",
     fix="'chronyc makestep'; look at 'chronyc sources'")
rule("processes.stale", "quick", processes, "ranks of ended jobs, which hold ports, memory and GPUs", "stale",
     want="none", bad=failed, fix="end them: kill {pids}")
rule("processes.stuck", "quick", processes, "processes that hang in the kernel for half a second", "stuck", want="none",
     fix="look at /proc/PID/stack: a network file system that does not answer, or a disk; then at the kernel's log")
rule("processes.zombies", "standard", processes, "ended processes that nobody waits for", "zombies", most="zombies",
     fix="restart their parent: 'ps -eo ppid,stat | grep Z' names it")
rule("processes.load", "quick", processes, "load for each CPU", "load", most="load-per-cpu",
     fix="look at 'top': another job, or something left over")
compare("memory.total", "quick", memory, "memory as on the other nodes", lambda facts, _: facts["total"], kind=float)(
    lambda values, context: usual_size(
        values, context.limit("memory-share"), "GiB", "look at 'dmidecode -t memory' and the BIOS for a missing module"
    )
)
rule("memory.available", "quick", memory, "free memory", "available", least="memory-available",
     fix="look at 'ps aux --sort=-rss' and at what an ended job left in /dev/shm")
rule("memory.swap", "standard", memory, "memory that was swapped out", "swap_used", most="swap-used",
     fix="'swapoff -a && swapon -a' brings it back; vm.swappiness=10 or less keeps it")
rule("memory.errors", "quick", memory, "memory errors that could not be corrected", "uncorrected", want=0, bad=failed,
     fix="'edac-util -v' or 'ras-mc-ctl --errors' names the module; have it replaced", absent="no EDAC")
rule("memory.corrected", "quick", memory, "memory errors that were corrected", "corrected", most="memory-corrected",
     fix="'edac-util -v' or 'ras-mc-ctl --errors' names the module; have it replaced", absent="no EDAC")
rule("memory.shm", "quick", memory, "size of /dev/shm", "shm", least="shm-size", bad=failed,
     fix="'mount -o remount,size=8G /dev/shm'; in a container --shm-size=8g or --ipc=host")
rule("memory.shm-use", "quick", memory, "how much of /dev/shm is in use", "shm_used", most="shm-use",
     fix="remove what ended jobs left: 'ls -l /dev/shm', 'glmforge cluster clean'")
rule("memory.machine-checks", "quick", kernel_log, "hardware errors in the kernel's log", _last("machine_checks"),
     want="none", bad=failed, fix="'ras-mc-ctl --errors' or 'mcelog' names the part; have it replaced")
rule("memory.out-of-memory", "quick", kernel_log, "processes killed for lack of memory", _last("out_of_memory"),
     want="none", fix="look in the kernel's log at who was killed and who held the memory")
_RAISE = " in the job script; if that fails, in /etc/security/limits.conf"
rule("limits.files", "quick", limits, "open files of a process", "files", least="fd-limit",
     fix="ulimit -n 65536" + _RAISE)
rule("limits.processes", "quick", limits, "processes of a user", "processes", least="process-limit",
     fix="ulimit -u 32768" + _RAISE)
rule("limits.locked-memory", "quick", limits, "memory that a process may lock, for RDMA", "locked",
     least="locked-memory", fix="ulimit -l unlimited" + _RAISE)
rule("limits.core-files", "standard", limits, "size of core files", "core", most="core-file",
     fix="ulimit -c 0" + _RAISE)
# fmt: on
