"""What there is: machines, GPUs, networks and disks, for a first `cluster.yaml`. Nothing is changed.

What all nodes that answer have in common becomes a setting; what differs, or was not found, is said.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmforge.config.cluster import ClusterConfig, SlurmConfig, SshConfig
from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.runtime.hostfile import LOCAL, split_names
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import fanout_of, gres_of, machines_of
from glmforge_ops.setup.ask import Asker, Failure
from glmforge_ops.setup.steps.network import kind_of_network

MIN_LOCAL_BYTES = 200 * 10**9
"""A disk below this is the system's, not one for data and checkpoints."""

_SYSTEM = ("/", "/boot", "/home", "/usr", "/var", "/opt", "/etc", "/tmp", "/snap")
_GPUS = re.compile(r"gpu:(?:[A-Za-z0-9_.-]+:)?(\d{1,3})")


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


def find_cluster(given: ClusterConfig, progress: Callable[[int, int], None] = lambda done, total: None) -> Found:
    """What is found on the machines that `given` names; without any on Slurm's, or on this one. Raises `HostError`."""
    found = Found()
    cluster = _with_machines(given, found)
    names = [line.name for line in machines_of(cluster)]
    found.said.append(f"{len(names)} machine{'s' if len(names) != 1 else ''}: {fold_hosts(names)}")
    if cluster.nodes is not None:
        found.settings["nodes"] = split_names(fold_hosts(names))
    if given.ssh != SshConfig():
        found.settings["ssh"] = given.ssh.model_dump(exclude_defaults=True, mode="json")
    asker = Asker(fanout_of(cluster))
    answers, failures = asker.ask({name: {"facts": {"mounts": True}} for name in names}, progress)
    _tell_of_ssh(names, failures, found)
    facts = {host: answer["facts"] for host, answer in answers.items()}
    _find_gpus(cluster, facts, found)
    if facts:
        _find_network(facts, found)
        _find_paths(facts, found)
    return found


def _with_machines(given: ClusterConfig, found: Found) -> ClusterConfig:
    if given.nodes is not None or given.hostfile is not None or given.slurm is not None:
        for name in ("nodes", "hostfile", "slurm"):
            if getattr(given, name) is not None:
                found.settings[name] = getattr(given, name)
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
    found.settings["nodes"] = ["localhost"]
    return given.model_copy(update={"nodes": ["localhost"]})


def _tell_of_ssh(names: Sequence[str], failures: Sequence[Failure], found: Found) -> None:
    remote = [name for name in names if name not in LOCAL]
    lost: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        lost.setdefault((failure.reason, failure.mend), []).append(failure.host)
    if remote and len(failures) < len(names):
        found.said.append(f"ssh reaches {len(remote) - len(failures)} of {len(remote)}")
    for (reason, mend), hosts in lost.items():
        found.missing.append(f"what {fold_hosts(hosts)} has: {reason}; {mend}")


def _find_gpus(cluster: ClusterConfig, facts: Mapping[str, Mapping[str, Any]], found: Found) -> None:
    counts = {host: (of_host["gpus"]["count"], "/".join(of_host["gpus"]["names"])) for host, of_host in facts.items()}
    count, kind = _usual(counts, "GPUs", found) if counts else (0, "")
    if count == 0 and cluster.slurm is not None:
        promised = [int(match[1]) for text in gres_of(cluster.slurm.partition) if (match := _GPUS.match(text))]
        count, kind = (max(promised), "as Slurm's gres says") if promised else (0, "")
    if count:
        found.said.append(f"{count} GPUs on each" + (f": {shown(kind)}" if kind else ""))
        found.settings["gpus_per_node"] = count
    else:
        found.missing.append("GPUs: neither nvidia-smi nor device files; set gpus_per_node")
        found.settings["gpus_per_node"] = 0 if facts else 8


def _find_network(facts: Mapping[str, Mapping[str, Any]], found: Found) -> None:
    kind = _usual({host: kind_of_network(of_host) for host, of_host in facts.items()}, "network", found)
    found.settings["network"] = kind
    found.said.append(f"network: {kind}")
    if kind != "tcp":
        link = "InfiniBand" if kind == "infiniband" else "Ethernet"
        devices = {
            host: tuple(dict.fromkeys(port["device"] for port in of_host["infiniband"] if port["link"] == link))
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


def _find_paths(facts: Mapping[str, Mapping[str, Any]], found: Found) -> None:
    """Paths that are on every node: a disk of its own, or the same network file system."""
    local = [{mount["path"]: mount for mount in of_host["mounts"] if _is_local(mount)} for of_host in facts.values()]
    common = [path for path in local[0] if all(path in mounts for mounts in local)]
    first = local[0]
    found.local_paths = sorted(common, key=lambda path: (not _is_nvme(first[path]), -first[path]["size"]))
    shared = [
        {(mount["path"], mount["source"]) for mount in of_host["mounts"] if mount["network"]}
        for of_host in facts.values()
    ]
    found.shared_paths = sorted(path for path, _ in set.intersection(*shared))
    if found.local_paths:
        found.settings["local_path"] = found.local_paths[0]
        sizes = (f"{shown(path)} ({first[path]['size'] / 1e12:.1f} TB)" for path in found.local_paths)
        found.said.append(f"local disks: {', '.join(sizes)}")
    else:
        found.missing.append(f"a local disk of {MIN_LOCAL_BYTES / 1e9:.0f} GB or more on every node; set local_path")
    if found.shared_paths:
        found.settings["shared_path"] = found.shared_paths[0]
        found.said.append(f"network file systems: {', '.join(map(shown, found.shared_paths))}")
    else:
        found.missing.append("a network file system that all nodes have; set shared_path")


def _is_local(mount: Mapping[str, Any]) -> bool:
    system = mount["path"] in _SYSTEM or mount["path"].startswith(("/boot/", "/snap/", "/etc/"))
    return not mount["network"] and mount.get("directory", False) and not system and mount["size"] >= MIN_LOCAL_BYTES


def _is_nvme(mount: Mapping[str, Any]) -> bool:
    return bool(mount["source"].startswith("/dev/nvme"))


def _usual(of_hosts: Mapping[str, Any], what: str, found: Found) -> Any:
    """What most nodes have; the others are named."""
    usual = Counter(of_hosts.values()).most_common(1)[0][0]
    others = [host for host, value in of_hosts.items() if value != usual]
    if others:
        found.missing.append(f"the same {what} everywhere: {fold_hosts(others)} differs from the rest")
    return usual
