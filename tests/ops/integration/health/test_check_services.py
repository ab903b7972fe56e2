"""Checks of monitoring and Slurm against the real programs, and a node that drains itself."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.dev import DevCluster, DevOptions, development_cluster
from glmforge_ops.dev.hosts import wait_until
from glmforge_ops.health.checks.check import Context, Level
from glmforge_ops.health.checks.examine import Findings, choose_checks, examine
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout
from helpers.dev_cluster import hosts_or_skip, install_slurm_or_skip
from helpers.distributed import free_port
from helpers.packages import install_or_skip

_LIMIT_S = 120.0


@contextmanager
def running(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            yield
        finally:
            process.kill()


def look(subject: str, config: ClusterConfig) -> Findings:
    return examine(["localhost"], choose_checks(Level.STANDARD, [subject]), Context(config, Thresholds()), Fanout(), 60)


def said(findings: Findings) -> dict[str, str]:
    return {check: outcome.status.value for check, of in findings.outcomes.items() for outcome in of.values()}


def test_exporters_and_prometheus(tmp_path: Path) -> None:
    install_or_skip(("prometheus", "prometheus-node-exporter"), ("prometheus", "prometheus-node-exporter"))
    exporter_port, port = free_port(), free_port()
    config = ClusterConfig.model_validate(
        {"monitoring": {"node_exporter_port": exporter_port, "prometheus": f"http://127.0.0.1:{port}"}}
    )
    scrape = {"job_name": "node", "static_configs": [{"targets": [f"localhost:{exporter_port}"]}]}
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
    exporter = ("prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{exporter_port}")
    server = ("prometheus", f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data",
              f"--web.listen-address=127.0.0.1:{port}")  # fmt: skip
    good, bad = ({"reach.ssh": "pass", "monitoring.metrics": status} for status in ("pass", "fail"))
    with running(*server, log=tmp_path / "server.log"):
        with running(*exporter, log=tmp_path / "exporter.log"):
            wait_until(lambda: said(look("monitoring", config)) == good, _LIMIT_S, "not all good")
        wait_until(lambda: said(look("monitoring", config)) == bad, _LIMIT_S, "the exporter's end is not noticed")
    assert said(look("monitoring", config)) == bad


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    hosts_or_skip()
    install_slurm_or_skip()
    options = DevOptions(nodes=2, gpus=2, slurmd_timeout_s=600)
    with development_cluster(tmp_path_factory.mktemp("s") / "c", options) as cluster:
        yield cluster


def check_on(cluster: DevCluster, host: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = (sys.executable, "-m", "glmforge", "cluster", "check", *arguments)
    return cluster.run(host, *command, check=False, environment={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"})


def node_state(cluster: DevCluster) -> str:
    return cluster.slurm("sinfo", "-h", "-n", "node1", "-o", "%T|%E").strip()


def wait_until_idle(cluster: DevCluster) -> None:
    """A node that was resumed has to answer first; until then its state has a star."""
    wait_until(lambda: node_state(cluster).startswith("idle|"), _LIMIT_S, "node1 is not idle")


def test_a_node_drains_itself_and_is_taken_back(slurm: DevCluster, tmp_path: Path) -> None:
    disk = slurm.disk("node1") / "fast"
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"local_path": str(slurm.local_path / "fast"), "gpus_per_node": 2}))
    quick = (str(file), "--local", "--only", "disk.local", "--drain")

    done = check_on(slurm, "node1", *quick)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("glmforge check: disk.local: ")
    state, _, reason = node_state(slurm).partition("|")
    assert (state, "fast is not there" in reason) == ("drained", True)

    disk.mkdir()
    done = check_on(slurm, "node1", *quick)
    assert (done.returncode, done.stdout) == (0, "")
    wait_until_idle(slurm)

    slurm.slurm("scontrol", "update", "nodename=node1", "state=drain", "reason=bad DIMM")
    assert check_on(slurm, "node1", *quick).returncode == 0
    assert node_state(slurm) == "drained|bad DIMM"

    config = tmp_path / "slurm.yaml"
    ssh = {"command": " ".join(slurm.ssh_command)}
    config.write_text(yaml.safe_dump({"slurm": {"partition": "main"}, "gpus_per_node": 2, "ssh": ssh}))
    done = check_on(slurm, "head", str(config), "--only", "slurm")
    assert done.returncode == 1
    assert "node1: drained: bad DIMM" in done.stdout
    slurm.slurm("scontrol", "update", "nodename=node1", "state=resume")
    wait_until_idle(slurm)
    done = check_on(slurm, "head", str(config), "--only", "slurm")
    assert done.returncode == 0, done.stdout
    assert "0 warnings, 0 failed, 0 skipped" in done.stdout


def test_drain_is_for_the_node_itself() -> None:
    command = (sys.executable, "-m", "glmforge", "cluster", "check", "--drain")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--local" in done.stderr
