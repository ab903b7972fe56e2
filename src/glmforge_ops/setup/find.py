"""Machines, GPUs, networks and disks for a first `cluster.yaml`. Nothing on the machines is changed.

What all nodes that answer have in common becomes a setting; what differs, or was not found, is named.
"""

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmforge.config.cluster import ClusterConfig, SlurmConfig, SshConfig
from glmforge.config.load import load_settings
from glmforge.config.tree import parse
from glmforge.errors import HostError
from glmforge.files import shown
from glmforge.observe.units import counted
from glmforge.runtime.hostfile import LOCAL, split_names
from glmforge_ops.hosts.fanout import Answer
from glmforge_ops.hosts.fold import fold_hosts
from glmforge_ops.hosts.machines import fanout_of, gres_of, machines_of, slurm_nodes
from glmforge_ops.hosts.remote_program import WIRE, RemoteProgram, read_answer
from glmforge_ops.setup.files import render

FACTS = RemoteProgram((WIRE, "glmforge_ops.setup.facts"))
_LIMIT_S = 120.0
_GPUS = re.compile(r"gpu:(?:[A-Za-z0-9_.-]+:)?(\d{1,3})")
_MISSING = {
    "gpus_per_node": "neither nvidia-smi nor device files of GPUs",
    "local_path": "no disk of 200 GB or more that all nodes have",
    "shared_path": "no network file system that all nodes have",
}


@dataclass
class Found:
    """What was found.

    Attributes:
        settings: fields of `ClusterConfig`, as far as something was found for them.
        said, missing: lines for the user.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def usual(self, name: str, values: Mapping[str, Any]) -> Any:
        """What most machines have; the others are named."""
        usual = Counter(values.values()).most_common(1)[0][0]
        others = [host for host, value in values.items() if value != usual]
        if others:
            self.missing.append(f"the same {name} everywhere: {fold_hosts(others)} differs from the rest")
        return usual

    def take(self, name: str, value: Any, about: str = "") -> None:
        """A setting, unless nothing was found for it."""
        if value:
            self.settings[name] = value
            self.said.append(shown(f"{name}: {value}{about}"))

    def take_path(self, name: str, of_hosts: Sequence[list[list[str]]]) -> None:
        """The first mount point that all machines have."""
        first, *rest = of_hosts
        common = [mount[0] for mount in first if all(mount in mounts for mounts in rest)]
        self.take(name, next(iter(common), None), f" (also {', '.join(common[1:])})" if common[1:] else "")


def find_cluster(given: ClusterConfig, on_answer: Callable[[Answer], None] = lambda answer: None) -> Found:
    """What is found on the machines that `given` names; without any on Slurm's, or on this one. Raises `HostError`."""
    found = Found()
    cluster = _with_machines(given, found)
    names = [line.name for line in machines_of(cluster)]
    found.said.append(f"{counted(len(names), 'machine')}: {fold_hosts(names)}")
    if cluster.nodes is not None:
        found.settings["nodes"] = split_names(fold_hosts(names))
    if given.ssh != SshConfig():
        found.settings["ssh"] = given.ssh.model_dump(exclude_defaults=True, mode="json")
    facts = _ask(cluster, names, found, on_answer)
    if facts:
        gpus = found.usual("GPUs", {host: tuple(has["gpus"]) for host, has in facts.items()})
        kinds = "/".join(sorted({kind for kind in gpus if kind}))
        found.take("gpus_per_node", len(gpus), f" ({kinds})" if kinds else "")
        kinds_of_link = {host: _network(has["links"]) for host, has in facts.items()}
        found.take("network", found.usual("network", kinds_of_link))
        found.take_path("local_path", [has["disks"] for has in facts.values()])
        found.take_path("shared_path", [has["shared"] for has in facts.values()])
    if "gpus_per_node" not in found.settings and cluster.slurm is not None:
        listed = [int(match[1]) for text in gres_of(cluster.slurm.partition) if (match := _GPUS.match(text))]
        found.take("gpus_per_node", max(listed, default=0), " (Slurm's gres)")
    found.missing += [f"{name}: {why}" for name, why in _MISSING.items() if facts and name not in found.settings]
    found.settings.setdefault("gpus_per_node", 0 if facts else 8)
    return found


def config_text(found: Found) -> str:
    """The text of `cluster.yaml`, every field explained, checked by reading it. Raises `ConfigError`."""
    nothing = dict.fromkeys(ClusterConfig.model_fields)
    text = render("cluster.yaml", found=found, settings=nothing | found.settings)
    load_settings(ClusterConfig, parse(text, "cluster.yaml"))
    return text


def _with_machines(given: ClusterConfig, found: Found) -> ClusterConfig:
    names = {name: value for name in ("nodes", "hostfile", "slurm") if (value := getattr(given, name)) is not None}
    if not names and shutil.which("sinfo") is not None:
        try:
            slurm_nodes(None)
            names = {"slurm": SlurmConfig()}
        except HostError as error:
            found.missing.append(f"Slurm's nodes: {error}")
    if not names:
        names = {"nodes": ["localhost"]}
        found.missing.append("other machines: no --hosts, --hostfile or --partition given; this machine is the cluster")
    found.settings |= names
    return given.model_copy(update=names)


def _ask(
    cluster: ClusterConfig, names: list[str], found: Found, on_answer: Callable[[Answer], None]
) -> dict[str, dict[str, Any]]:
    """What each machine has; those that do not answer are noted."""
    facts: dict[str, dict[str, Any]] = {}
    lost: dict[str, list[str]] = {}
    for host, answer in fanout_of(cluster).run(names, FACTS.script, _LIMIT_S, FACTS.sent({}), on_answer).items():
        try:
            if not answer.is_done:
                raise HostError(answer.problem if answer.fix else f"{answer.reason}; install python3 of 3.11 or newer")
            facts[host] = read_answer(answer)
        except HostError as error:
            lost.setdefault(str(error), []).append(host)
    remote = [name for name in names if name not in LOCAL]
    if remote and facts:
        found.said.append(f"ssh reaches {len(facts.keys() & set(remote))} of {len(remote)}")
    found.missing += [f"what {fold_hosts(hosts)} has: {reason}" for reason, hosts in lost.items()]
    return facts


def _network(links: Sequence[str]) -> str:
    """The kind of network of a machine with these link layers of RDMA ports."""
    return "infiniband" if "InfiniBand" in links else "roce" if links else "tcp"
