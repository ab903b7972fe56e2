"""Checks of the level `thorough` on hosts in namespaces: each with a fault that really is, and without.

What reads or trains for long is not in `make test`.
"""

import json
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.dev import DevOptions, development_cluster
from glmforge_ops.health.checks.check import Context, Level, Outcome
from glmforge_ops.health.checks.examine import choose_checks, examine
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.machines import fanout_of
from helpers.dev_cluster import hosts_or_skip
from helpers.packages import install_or_skip
from helpers.ranks import PATIENCE_S, until
from helpers.real_faults import MASTER_PORT, Node

NUM_NODES = 3
BETWEEN_SAMPLES = 100_000
"""Of a file of a megabyte or so, `data.equal` reads neither this byte nor those around it."""
PROBE_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    hosts_or_skip()
    directory = tmp_path_factory.mktemp("thorough")
    for name in ("shared", "checkpoints", "data"):
        (directory / name).mkdir()
    (directory / "data/train.bin").write_bytes(secrets.token_bytes(512_000))
    with development_cluster(directory / "c", DevOptions(nodes=NUM_NODES, gpus=0, slurm=False)) as cluster:
        yield [Node(cluster, name, directory) for name in cluster.nodes]


def ask(nodes: list[Node], checks: list[str], **thresholds: float) -> dict[str, dict[str, Outcome]]:
    """What some checks say of each node."""
    one = nodes[0]
    config = ClusterConfig(
        nodes=[node.name for node in nodes],
        gpus_per_node=0,
        shared_path=one.shared,
        data_paths=[one.data],
        master_port=MASTER_PORT,
        python=sys.executable,
        ssh={"command": shlex.join(one.cluster.ssh_command)},
    )
    chosen = choose_checks(Level.THOROUGH, checks)
    context = Context(config, Thresholds(thresholds))
    found = examine([node.name for node in nodes], chosen, context, fanout_of(config), PROBE_LIMIT_S)
    return {check: dict(found.outcomes[check]) for check in checks}


def statuses(outcomes: dict[str, Outcome]) -> list[str]:
    return [outcome.status.value for outcome in outcomes.values()]


def test_one_byte_that_no_sample_meets_is_found(nodes: list[Node]) -> None:
    file = nodes[1].data / "train.bin"
    content = bytearray(file.read_bytes())
    content[BETWEEN_SAMPLES] ^= 1
    checks = ["data.equal", "data.whole"]
    with nodes[1].over(file, bytes(content)):
        found = ask(nodes, checks)
    assert statuses(found["data.equal"]) == ["pass"] * NUM_NODES
    assert statuses(found["data.whole"]) == ["pass", "fail", "pass"]
    assert found["data.whole"]["node2"].value == f"{file} differs"
    assert statuses(ask(nodes, checks)["data.whole"]) == ["pass"] * NUM_NODES


@pytest.mark.chaos
def test_storage_behind_a_slow_link_is_found(nodes: list[Node]) -> None:
    """One node has the shared directory through ssh, over a link at 100 Mbit/s; the others have it as it is."""
    install_or_skip(("sshfs", "fio"), ("sshfs", "fio"))
    slow, server = nodes[1], nodes[0]
    own = {"shared-read": 0.03, "shared-write": 0.03, "shared-iops": 0}  # what this machine's disk does even if busy
    found = ask(nodes, ["shared.speed"], **own)["shared.speed"]
    assert statuses(found) == ["pass"] * NUM_NODES, found
    slow.cluster.limit_rate(slow.name, "100mbit")
    slow.run("sshfs", "-o", f"ssh_command={shlex.join(slow.cluster.ssh_command)}",
             f"{server.name}:{server.shared}", str(slow.shared))  # fmt: skip
    try:
        found = ask(nodes, ["shared.speed"], **own)["shared.speed"]
        assert statuses(found) == ["pass", "fail", "pass"], found
    finally:
        slow.run("umount", str(slow.shared))
        slow.cluster.limit_rate(slow.name, None)


@pytest.mark.chaos
def test_a_node_on_which_the_package_is_broken_fails_the_job(nodes: list[Node]) -> None:
    """And that node alone is blamed; those that waited for it are not."""
    import glmforge.recipes.train

    pair = nodes[:2]
    assert statuses(ask(pair, ["job.recovery"])["job.recovery"]) == ["pass", "pass"]
    with nodes[1].over(Path(glmforge.recipes.train.__file__), "raise ImportError('planted')\n"):
        found = ask(pair, ["job.recovery"])["job.recovery"]
    assert statuses(found) == ["skipped", "fail"], found
    assert "planted" in found["node2"].fix
    assert not list(nodes[0].shared.iterdir())


@pytest.mark.chaos
def test_a_run_that_resumes_to_other_losses_is_found(nodes: list[Node]) -> None:
    """The tokens are other ones after the kill: every run ends well, and only the losses tell."""
    pair = nodes[:2]
    found = ask(pair, ["job.recovery"])["job.recovery"]
    assert statuses(found) == ["pass", "pass"], found
    spoil = (
        f"cd {nodes[0].shared}; until ls .glmforge-check-*/broken.killed >/dev/null 2>&1; do sleep 0.1; done; "
        "file=$(ls .glmforge-check-*/train.bin); "
        'head -c "$(stat -c %s "$file")" /dev/zero | dd of="$file" conv=notrunc 2>/dev/null; echo spoiled'
    )
    with subprocess.Popen(nodes[2].cluster.command("node3", "sh", "-c", spoil), stdout=subprocess.PIPE) as process:
        found = ask(pair, ["job.recovery"])["job.recovery"]
        assert process.communicate(timeout=60)[0] == b"spoiled\n"
    assert {outcome.value for outcome in found.values()} == {"other loss at step 3 after the resume"}, found
    assert statuses(found) == ["fail", "fail"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_check_that_is_ended_leaves_nothing_that_runs(nodes: list[Node], number: signal.Signals) -> None:
    """Nor, unless it was killed, a file: the next check finds its port free."""
    shared = nodes[0].shared
    config = shared / "cluster.yaml"
    given = {"nodes": [node.name for node in nodes], "gpus_per_node": 0, "shared_path": str(shared)}
    config.write_text(json.dumps(given | {"master_port": MASTER_PORT, "python": sys.executable}))
    command = [sys.executable, "-m", "glmforge", "cluster", "check", str(config), "--level", "thorough"]
    command += ["--only", "job.recovery", "--ssh", shlex.join(nodes[0].cluster.ssh_command)]
    check = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until(lambda: len(trains_below(shared)) == len(nodes), "a process on each node")
    check.send_signal(number)
    check.wait(PATIENCE_S)
    until(lambda: not trains_below(shared), "their end")
    left = list(shared.glob(".glmforge-check-*"))
    assert not left or number == signal.SIGKILL
    for folder in left:
        shutil.rmtree(folder)


def trains_below(shared: Path) -> list[str]:
    """Command lines of training that checks have started."""
    lines = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdecimal():
                lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in lines if f" train {shared}/.glmforge-check-" in line]
