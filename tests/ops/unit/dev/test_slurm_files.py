from pathlib import Path

import pytest

from glmforge_ops.dev.options import HEAD, DevOptions
from glmforge_ops.dev.places import Places
from glmforge_ops.dev.slurm import expand
from glmforge_ops.dev.slurm_files import gres_conf, slurm_conf, slurmdbd_conf, write_slurm_files
from glmforge_ops.dev.state import ClusterState, HostRecord

PLACES = Places(Path("/clusters/one"))


def state_of(options: DevOptions, mode: str = "namespaces") -> ClusterState:
    hosts = {HEAD: HostRecord(address="10.77.0.254")}
    hosts |= {name: HostRecord(address=f"10.77.0.{n}") for n, name in enumerate(options.node_names, 1)}
    return ClusterState.model_validate({"options": options, "mode": mode, "ssh": True, "hosts": hosts})


def settings_of(text: str) -> dict[str, str]:
    """The lines that set one thing; none twice, and none empty, which Slurm takes for an error."""
    lines = [line for line in text.splitlines() if not line.startswith(("NodeName=", "PartitionName="))]
    pairs = [line.split("=", 1) for line in lines]
    assert len(dict(pairs)) == len(pairs)
    assert all(value for _, value in pairs)
    return dict(pairs)


def test_nodes_are_hosts_at_their_addresses() -> None:
    text = slurm_conf(PLACES, state_of(DevOptions(nodes=2, gpus=4, cpus=6, slurmd_timeout_s=5)))
    settings = settings_of(text)
    assert settings["FirstJobId"] == "1"
    assert settings["SlurmctldHost"] == "head(10.77.0.254)"
    assert settings["SlurmdTimeout"] == "5"
    assert settings["AuthInfo"] == "socket=/clusters/one/munge/socket"
    nodes = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert nodes == [
        f"NodeName=node{n} NodeAddr=10.77.0.{n} CPUs=6 Sockets=1 CoresPerSocket=6 ThreadsPerCore=1 RealMemory=1000 "
        "Gres=gpu:4"
        for n in (1, 2)
    ]
    assert "PartitionName=urgent PriorityTier=100 PreemptMode=OFF" in text


def test_plain_nodes_are_told_by_their_ports() -> None:
    state = state_of(DevOptions(nodes=2, gpus=0), "plain")
    state.hosts["node2"].ports["slurmd"] = 17002
    state.hosts[HEAD].ports["slurmctld"] = 16817
    text = slurm_conf(PLACES, state)
    assert settings_of(text)["SlurmctldPort"] == "16817"
    assert [line.endswith(" Port=17002") for line in text.splitlines() if line.startswith("NodeName=")] == [False, True]
    assert "gpu" not in text.lower()
    assert gres_conf(PLACES, state.options) == ""


def test_gpus_are_the_same_devices_everywhere() -> None:
    assert gres_conf(PLACES, DevOptions(nodes=2, gpus=8)).splitlines() == [
        f"NodeName=node{n} Name=gpu File=/clusters/one/gpus/nvidia[0-7]" for n in (1, 2)
    ]


def test_programs_around_jobs(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    options = DevOptions(prolog=program, health_check=program, health_check_interval_s=7)
    places = Places(tmp_path / "cluster")
    places.make()
    write_slurm_files(places, state_of(options))
    settings = settings_of(places.slurm_conf.read_text())
    for name in ("Prolog", "HealthCheckProgram"):
        hook = Path(settings[name])
        assert hook.stat().st_mode & 0o700 == 0o700
        # Slurm tells a health check nothing of where it is.
        assert hook.read_text() == f'#!/bin/sh\nexport SLURM_CONF={places.slurm_conf}\nexec {program} "$@"\n'
    assert settings["HealthCheckInterval"] == "7"
    assert "Prolog" not in settings_of(slurm_conf(PLACES, state_of(DevOptions())))


@pytest.mark.parametrize("accounting", [True, False])
def test_who_keeps_the_accounts(accounting: bool) -> None:
    state = state_of(DevOptions(accounting=accounting))
    settings = settings_of(slurm_conf(PLACES, state))
    assert ("AccountingStorageHost" in settings) is accounting
    assert ("JobCompLoc" in settings) is not accounting
    if accounting:
        assert settings["AccountingStorageTRES"] == "gres/gpu"
        database = settings_of(slurmdbd_conf(PLACES, state, "secret"))
        assert database["StorageHost"] == "127.0.0.1"
        assert database["StoragePass"] == "secret"
        assert database["DbdAddr"] == settings["AccountingStorageHost"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("node3", ["node3"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[1,4-5]", ["node1", "node4", "node5"]),
    ],
)
def test_lists_of_nodes(text: str, names: list[str]) -> None:
    assert expand(text) == names
