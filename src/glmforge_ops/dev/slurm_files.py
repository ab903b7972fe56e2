"""slurm.conf and what belongs to it: text, made of the options and of where the hosts are.

Settings that have to be there although they look needless: cgroup.conf, for without it slurmd looks for cgroups and
ends if there are none; `config_overrides`, which lets nodes claim more CPUs than this machine has; a controller named
as its host names itself; a script around a program that Slurm runs, whose environment says nothing of where Slurm is
(PATH is empty too, which a shell fills). Without accounting, what became of jobs is in the log `jobcomp`.
"""

import socket
from collections.abc import Mapping
from pathlib import Path

from glmforge_ops.dev.options import HEAD, DevOptions
from glmforge_ops.dev.places import Places, user_name
from glmforge_ops.dev.state import ClusterState, HostRecord

CLUSTER_NAME = "dev"
DATABASE = "slurm_accounting"

_COMMON = """ClusterName={cluster}
AuthType=auth/munge
AuthInfo=socket={socket}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={spool}
SlurmctldPidFile={directory}/state/slurmctld.pid
SlurmdPidFile={directory}/hosts/%n/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmctldTimeout=10
SlurmdTimeout={slurmd_timeout}
FirstJobId={first_job}
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
_PARTITIONS = """PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE State=UP
PartitionName=main Default=YES PriorityTier=1 GraceTime={grace_time}
PartitionName=urgent PriorityTier=100 PreemptMode=OFF
"""
_NODE = "CPUs={cpus} Sockets=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=1000"
_CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def slurm_conf(places: Places, state: ClusterState) -> str:
    """slurm.conf of the cluster; jobs in `main` give way to those in `urgent`, and are requeued."""
    options, head = state.options, state.hosts[HEAD]
    text = _COMMON.format(
        cluster=CLUSTER_NAME,
        socket=places.munge_socket,
        user=user_name(),
        directory=places.directory,
        spool=places.spool("%n"),
        slurmd_timeout=options.slurmd_timeout_s,
        first_job=options.first_job,
    )
    text += f"SlurmctldHost={_name_of_head(state)}({head.address})\n"
    if "slurmctld" in head.ports:
        text += f"SlurmctldPort={head.ports['slurmctld']}\n"
    if options.prolog is not None:
        text += f"Prolog={_hook(places, 'prolog')}\nPrologFlags=Alloc\n"
    if options.health_check is not None:
        text += f"HealthCheckProgram={_hook(places, 'health_check')}\n"
        text += f"HealthCheckInterval={options.health_check_interval_s}\n"
    text += _accounting(places, head, options)
    if options.gpus:
        text += "GresTypes=gpu\n"
    for name in options.node_names:
        text += _node(name, state.hosts[name], options)
    return text + _PARTITIONS.format(grace_time=options.grace_time_s)


def gres_conf(places: Places, options: DevOptions) -> str:
    """gres.conf: the same devices on every node."""
    devices = f"{places.gpus}/nvidia[0-{options.gpus - 1}]"
    return "".join(f"NodeName={name} Name=gpu File={devices}\n" for name in options.node_names if options.gpus)


def slurmdbd_conf(places: Places, state: ClusterState, password: str) -> str:
    """slurmdbd.conf; it holds the password of the database, which listens on the head's loopback only."""
    head = state.hosts[HEAD]
    lines = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={places.munge_socket}",
        "DbdHost": _name_of_head(state),
        "DbdAddr": head.address,
        "DbdPort": head.ports.get("slurmdbd", 6819),
        "SlurmUser": user_name(),
        "PidFile": places / "state/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "127.0.0.1",
        "StoragePort": head.ports.get("mariadbd", 3306),
        "StorageUser": "slurm",
        "StoragePass": password,
        "StorageLoc": DATABASE,
    }
    return _lines(lines)


def write_slurm_files(places: Places, state: ClusterState) -> None:
    """All of Slurm's files but slurmdbd.conf, whose password is made elsewhere."""
    places.slurm_conf.write_text(slurm_conf(places, state))
    places.slurm_conf.with_name("gres.conf").write_text(gres_conf(places, state.options))
    places.slurm_conf.with_name("cgroup.conf").write_text(_CGROUP_CONF)
    for name in ("prolog", "health_check"):
        if (program := getattr(state.options, name)) is not None:
            hook = _hook(places, name)
            hook.write_text(f'#!/bin/sh\nexport SLURM_CONF={places.slurm_conf}\nexec {program} "$@"\n')
            hook.chmod(0o700)


def _hook(places: Places, name: str) -> Path:
    return places / "slurm" / name


def _name_of_head(state: ClusterState) -> str:
    return HEAD if state.mode == "namespaces" else socket.gethostname().split(".")[0]


def _node(name: str, record: HostRecord, options: DevOptions) -> str:
    text = f"NodeName={name} NodeAddr={record.address} {_NODE.format(cpus=options.cpus)}"
    if options.gpus:
        text += f" Gres=gpu:{options.gpus}"
    if "slurmd" in record.ports:
        text += f" NodeHostname={socket.gethostname().split('.')[0]} Port={record.ports['slurmd']}"
    return text + "\n"


def _accounting(places: Places, head: HostRecord, options: DevOptions) -> str:
    if not options.accounting:
        return f"JobCompType=jobcomp/filetxt\nJobCompLoc={places.logs}/jobcomp.log\n"
    lines: Mapping[str, object] = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": head.address,
        "AccountingStoragePort": head.ports.get("slurmdbd", 6819),
        "AccountingStoragePass": places.munge_socket,  # which munge, in spite of its name
        "AccountingStorageEnforce": "associations,limits,qos",  # without it any account and qos will do
        "JobAcctGatherType": "jobacct_gather/linux",
        "JobAcctGatherFrequency": 2,
    }
    return _lines(lines) + ("AccountingStorageTRES=gres/gpu\n" if options.gpus else "")


def _lines(settings: Mapping[str, object]) -> str:
    return "".join(f"{name}={value}\n" for name, value in settings.items())
