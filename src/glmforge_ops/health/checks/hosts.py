"""The list of machines, and ssh between them, which mpirun, DeepSpeed's launcher and staging need."""

from __future__ import annotations

import os
import re
import socket
import stat
from typing import Any

from glmforge_ops.health.checks.check import (
    Context,
    Facts,
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
)  # fmt: skip
from glmforge_ops.health.checks.node import call, names_in, read_text


def identity(cluster: Facts) -> dict[str, Any]:
    """Which machine this is, by boot and host name together: containers of one machine share the boot, clones the
    machine's id. And how many GPUs it has.
    """
    files = [read_text(file) for file in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")]
    num_gpus = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names_in("/dev"))
    return {"machine": f"{socket.gethostname()} {files}", "gpus": num_gpus}


def ssh_files(cluster: Facts) -> dict[str, Any]:
    """Files of this user's ssh that are open to others: keys that they can read, or what they can write."""
    folder = os.path.expanduser("~/.ssh")
    if not os.path.isdir(folder):
        return {"open": None}
    modes = {folder: stat.S_IWGRP | stat.S_IWOTH, os.path.dirname(folder): stat.S_IWGRP | stat.S_IWOTH}
    for name in sorted(os.listdir(folder)):
        is_key = "PRIVATE KEY-----" in (read_text(f"{folder}/{name}") or "")[:100]
        if is_key or name in ("authorized_keys", "config"):
            modes[f"{folder}/{name}"] = stat.S_IRWXG | stat.S_IRWXO if is_key else stat.S_IWGRP | stat.S_IWOTH
    return {"open": " ".join(file for file, mode in modes.items() if os.stat(file).st_mode & mode) or "nothing"}


def reach(cluster: Facts, arguments: Facts) -> dict[str, Any]:
    """Whether ssh gets to a node, as the cluster calls it. It asks nothing, and takes no host key that is not known."""
    status, _, said = call(*arguments["command"], limit_s=15)
    return {"status": status, "said": said}


@compare(
    "hostfile.machines", "standard", identity, "each name is a machine of its own", lambda facts, _: facts["machine"]
)
def machines(values: dict[str, Any], context: Context) -> dict[str, Outcome]:
    """Two names of one machine would give it twice the ranks."""
    outcomes = {}
    for host, machine in values.items():
        others = [other for other, found in values.items() if found == machine and other != host]
        same = failed(f"is the same machine as {', '.join(others[:4])}", "another machine", "keep one of the names")
        outcomes[host] = same if others else passed("is one machine")
    return outcomes


@act("hostfile.slots", "standard", identity, "as many slots in the hostfile as GPUs in /dev")
def slots(session: Session) -> dict[str, Outcome]:
    """Places for ranks."""

    def judge_slots(host: str, facts: Facts) -> Outcome:
        machine = session.context.machines.get(host)
        if machine is None or machine.slots is None or facts["gpus"] == 0:
            return skipped("no slots are given, or there are no GPUs", "write slots=8 in the hostfile")
        value, threshold = f"slots={machine.slots}, {facts['gpus']:d} GPUs", "as many slots as GPUs"
        fix = "correct the hostfile, or look for the GPU that is missing: lspci, dmesg"
        return passed(value, threshold) if machine.slots == facts["gpus"] else failed(value, threshold, fix)

    return judge_each(session.known(identity), judge_slots)


rule("ssh.keys", "standard", ssh_files, "files of ssh that are open to others", "open", want="nothing", bad=failed,
     fix="chmod go-rwx {open}; if one is a key, others may have it already: make a new one",
     absent="there is no ~/.ssh")  # fmt: skip


@act("ssh.nodes", "standard", None, "each node reaches the next one by ssh")
def nodes(session: Session) -> dict[str, Outcome]:
    """In the order of the list."""
    from glmforge.runtime.ssh import UNREACHABLE, explain_unreachable
    from glmforge_ops.hosts.machines import ssh_of

    following = ring(session.hosts)

    def judge_reached(host: str, facts: Facts) -> Outcome:
        to, threshold = name_of(following[host]), "reaches the next node"
        if facts["status"] == 0:
            return passed(f"reaches {to}", threshold)
        if facts["status"] != UNREACHABLE:
            return failed(f"ssh to {to}: {facts['said']}", threshold, "apt-get install openssh-client")
        meaning, fix = explain_unreachable(facts["said"])
        if "glmforge cluster setup" in fix:
            fix = "have nodes use what 'glmforge cluster setup' made: ssh.command (or --ssh) 'ssh -F OUT/ssh/config'"
        return failed(f"ssh to {to}: {meaning}", threshold, fix)

    ssh = ssh_of(session.context.cluster)
    asked = {host: {"command": ssh.to(name_of(to), "true")} for host, to in following.items()}
    told = session.ask(reach, asked, 20.0) if asked else ({}, {})
    return session.everywhere(skipped("takes two nodes")) | judge_each(told, judge_reached)
