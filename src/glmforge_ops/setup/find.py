"""What there is: machines, GPUs, networks and disks, for a first `cluster.yaml`. Nothing on the machines is changed.

What all nodes that answer have in common becomes a setting; what differs, or was not found, is named.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from glmforge.config.cluster import ClusterConfig, SlurmConfig, SshConfig
from glmforge.config.load import load_settings
from glmforge.config.tree import parse
from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.hostfile import LOCAL, split_names
from glmforge_ops.hosts.fanout import Answer
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import fanout_of, gres_of, machines_of
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer
from glmforge_ops.setup.files import render

MIN_LOCAL_BYTES = 200 * 10**9
"""A disk below this is the system's, not one for data and checkpoints."""

FACTS = RemoteProgram((WIRE, "glmforge_ops.setup.facts"))
_LIMIT_S = 120.0
_SYSTEM = re.compile(r"/|/(boot|snap|etc)(/.*)?|/(home|usr|var|opt|tmp)")
_GPUS = re.compile(r"gpu:(?:[A-Za-z0-9_.-]+:)?(\d{1,3})")
_Facts = Mapping[str, Mapping[str, Any]]


@dataclass
class Found:
    """What was found.

    Attributes:
        settings: fields of `ClusterConfig`, as far as something was found for them.
        said, missing: in words; `missing` with what to do about it.
        local_paths, shared_paths: candidates, the best first.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    local_paths: list[str] = field(default_factory=list)
    shared_paths: list[str] = field(default_factory=list)


def find_cluster(given: ClusterConfig, on_answer: Callable[[Answer], None] = lambda answer: None) -> Found:
    """What is found on the machines that `given` names; without any on Slurm's, or on this one. Raises `HostError`."""
    found = Found()
    cluster = _with_machines(given, found)
    names = [line.name for line in machines_of(cluster)]
    found.said.append(f"{len(names)} machine{'s' if len(names) != 1 else ''}: {fold_hosts(names)}")
    if cluster.nodes is not None:
        found.settings["nodes"] = split_names(fold_hosts(names))
    if given.ssh != SshConfig():
        found.settings["ssh"] = given.ssh.model_dump(exclude_defaults=True, mode="json")
    facts = _ask(cluster, names, found, on_answer)
    _find_gpus(cluster, facts, found)
    if facts:
        _find_network(facts, found)
        _find_paths(facts, found)
    return found


def config_text(found: Found) -> str:
    """The text of `cluster.yaml`, every field explained, checked by reading it. Raises `ConfigError`."""
    nothing = dict.fromkeys(ClusterConfig.model_fields)
    text = render("cluster.yaml", found=found, settings=nothing | found.settings)
    load_settings(ClusterConfig, parse(text, "cluster.yaml"))
    return text


def _with_machines(given: ClusterConfig, found: Found) -> ClusterConfig:
    if given.nodes is not None or given.hostfile is not None or given.slurm is not None:
        found.settings |= {
            name: getattr(given, name) for name in ("nodes", "hostfile", "slurm") if getattr(given, name)
        }
        return given
    if shutil.which("sinfo") is not None:
        cluster = given.model_copy(update={"slurm": SlurmConfig()})
        try:
            machines_of(cluster)
        except HostError as error:
            found.missing.append(f"Slurm's nodes: {error}")
        else:
            found.said.append("Slurm, with a default partition")
            found.settings["slurm"] = cluster.slurm
            return cluster
    found.missing.append("other machines: no --hosts, --hostfile or --partition given; this machine is the cluster")
    return given.model_copy(update={"nodes": ["localhost"]})


def _ask(cluster: ClusterConfig, names: list[str], found: Found, on_answer: Callable[[Answer], None]) -> _Facts:
    """What each machine has; those that do not answer are noted."""
    facts: dict[str, Any] = {}
    lost: dict[str, list[str]] = {}
    answers = fanout_of(cluster).run(names, FACTS.script, _LIMIT_S, FACTS.sent({}), on_answer)
    for host, answer in answers.items():
        try:
            if not answer.is_done:
                fix = answer.fix or f"python3 there must be {FACTS.oldest} or newer"
                raise HostError(f"{answer.reason}; {fix}")
            facts[host] = read_answer(answer)
        except HostError as error:
            lost.setdefault(str(error), []).append(host)
    remote = [name for name in names if name not in LOCAL]
    if remote and facts:
        found.said.append(f"ssh reaches {len([name for name in remote if name in facts])} of {len(remote)}")
    found.missing += [f"what {fold_hosts(hosts)} has: {reason}" for reason, hosts in lost.items()]
    return facts


def _find_gpus(cluster: ClusterConfig, facts: _Facts, found: Found) -> None:
    names = _usual({host: tuple(of_host["gpus"]) for host, of_host in facts.items()}, "GPUs", found) or ()
    count, kind = len(names), "/".join(sorted(filter(None, set(names))))
    if count == 0 and cluster.slurm is not None:
        promised = [int(match[1]) for text in gres_of(cluster.slurm.partition) if (match := _GPUS.match(text))]
        count, kind = max(promised, default=0), "as Slurm's gres says"
    if count:
        found.said.append(f"{count} GPUs on each" + (f": {shown(kind)}" if kind else ""))
        found.settings["gpus_per_node"] = count
    else:
        found.missing.append("GPUs: neither nvidia-smi nor device files; set gpus_per_node")
        found.settings["gpus_per_node"] = 0 if facts else 8


def _find_network(facts: _Facts, found: Found) -> None:
    links = {host: {link for _, link in of_host["rdma"]} for host, of_host in facts.items()}
    kinds = {host: "infiniband" if "InfiniBand" in has else "roce" if has else "tcp" for host, has in links.items()}
    kind = found.settings["network"] = _usual(kinds, "network", found)
    found.said.append(f"network: {kind}")
    if kind != "tcp":
        wanted = "InfiniBand" if kind == "infiniband" else "Ethernet"
        devices = {
            host: tuple(dict.fromkeys(device for device, link in of_host["rdma"] if link == wanted))
            for host, of_host in facts.items()
        }
        found.settings["infiniband"] = list(_usual(devices, "RDMA devices", found))
        found.said.append(f"RDMA devices: {', '.join(found.settings['infiniband'])}")
    routes = {host: of_host["route"] for host, of_host in facts.items() if of_host["route"]}
    if routes:
        found.settings["interface"] = _usual(routes, "interface", found)
        found.said.append(f"interface of the default route: {found.settings['interface']}")
    else:
        found.missing.append("an interface: there is no default route; set 'interface' as 'ip link' names it")


def _find_paths(facts: _Facts, found: Found) -> None:
    """Paths that are on every node: a disk of its own, or the same network file system."""
    mounts = [of_host["mounts"] for of_host in facts.values()]
    local = [{mount["path"]: mount for mount in of_host if _is_local(mount)} for of_host in mounts]
    first = local[0]
    common = [path for path in first if all(path in of_host for of_host in local)]
    is_slow = {path: not first[path]["source"].startswith("/dev/nvme") for path in common}
    found.local_paths = sorted(common, key=lambda path: (is_slow[path], -first[path]["size"]))
    shared = [{(mount["path"], mount["source"]) for mount in of_host if mount["network"]} for of_host in mounts]
    found.shared_paths = sorted(path for path, _ in set.intersection(*shared))
    sizes = [f"{shown(path)} ({first[path]['size'] / 1e12:.1f} TB)" for path in found.local_paths]
    _choose("local_path", "local disks", found.local_paths, sizes, found)
    _choose("shared_path", "network file systems", found.shared_paths, map(shown, found.shared_paths), found)


def _choose(name: str, what: str, paths: list[str], in_words: Iterable[str], found: Found) -> None:
    if paths:
        found.settings[name] = paths[0]
        found.said.append(f"{what}: {', '.join(in_words)}")
    else:
        size = f" of {MIN_LOCAL_BYTES / 1e9:.0f} GB or more" if name == "local_path" else ""
        found.missing.append(f"{what}{size} that all nodes have; set {name}")


def _is_local(mount: Mapping[str, Any]) -> bool:
    return not mount["network"] and not _SYSTEM.fullmatch(mount["path"]) and mount["size"] >= MIN_LOCAL_BYTES


def _usual(of_hosts: Mapping[str, Any], what: str, found: Found) -> Any:
    """What most nodes have; the others are named."""
    if not of_hosts:
        return None
    usual = Counter(of_hosts.values()).most_common(1)[0][0]
    others = [host for host, value in of_hosts.items() if value != usual]
    if others:
        found.missing.append(f"the same {what} everywhere: {fold_hosts(others)} differs from the rest")
    return usual
