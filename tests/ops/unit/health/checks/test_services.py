"""Checks of keys, the list of nodes, the environment, monitoring, Slurm and shared storage together."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.errors import HostError
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.health.checks import environment, hostfile, monitoring, shared_together, slurm, ssh
from glmforge_ops.health.checks.action import Told
from glmforge_ops.health.checks.check import Context, Session
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.outcome import Outcome
from glmforge_ops.health.checks.probes import environment as environment_probe
from glmforge_ops.health.checks.probes import monitoring as monitoring_probe
from glmforge_ops.health.checks.probes import slurm as slurm_probe
from glmforge_ops.health.checks.probes import ssh as ssh_probe
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

CONTEXT = Context(ClusterConfig(), Thresholds())


def session(hosts: list[str], **given: Any) -> Session:
    return Session(Context(ClusterConfig(**given), Thresholds()), hosts, Fanout(), {})


def statuses(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    return {host: outcome.status.value for host, outcome in outcomes.items()}


def test_keys_that_others_can_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ssh.keys(Facts(ssh_probe.gather({})), CONTEXT).status == "skipped"
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    for name, text, mode in (
        ("id_x", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600),
        ("id_x.pub", "ssh-ed25519 x\n", 0o644),
        ("authorized_keys", "ssh-ed25519 x\n", 0o644),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    assert ssh.keys(Facts(ssh_probe.gather({})), CONTEXT).status == "pass"
    for name, mode in (("id_x", 0o640), ("authorized_keys", 0o666), (".", 0o770)):
        before = (folder / name).stat().st_mode
        (folder / name).chmod(mode)
        outcome = ssh.keys(Facts(ssh_probe.gather({})), CONTEXT)
        assert (outcome.status.value, str(folder) in outcome.value) == ("fail", True)
        (folder / name).chmod(before)


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        ({"status": 0, "said": ""}, "pass", "reaches b"),
        ({"status": 255, "said": "Host key verification failed."}, "fail", "host key is not known"),
        ({"status": 255, "said": "root@b: Permission denied (publickey)."}, "fail", "refuses the key"),
        ({"status": None, "said": "there is no ssh"}, "fail", "there is no ssh"),
    ],
)
def test_why_a_node_is_not_reached_by_another(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], status: str, said: str
) -> None:
    good = {"status": 0, "said": ""}
    monkeypatch.setattr(ssh, "ask_nodes", lambda *_: ({"a": Facts(found), "b": Facts(good)}, {}))
    outcomes = ssh.nodes(session(["a", "b"]))
    assert (outcomes["a"].status.value, said in outcomes["a"].value) == (status, True)
    assert outcomes["b"].status == "pass"
    assert ssh.nodes(session(["a"]))["a"].status == "skipped"


def test_two_names_of_one_machine_are_told() -> None:
    def machine(boot: str, name: str) -> Facts:
        return Facts({"boot": boot, "machine": "m", "hostname": name, "gpus": 8})

    nodes = {"a": machine("1", "x"), "b": machine("1", "x"), "c": machine("1", "z"), "d": machine("2", "x")}
    assert statuses(hostfile.machines(nodes, CONTEXT)) == {"a": "fail", "b": "fail", "c": "pass", "d": "pass"}
    context = Context(ClusterConfig(), Thresholds(), {"a": HostLine("a", 8), "b": HostLine("b", 4), "c": HostLine("c")})
    nodes["d"] = Facts({"gpus": 0})
    assert statuses(hostfile.slots(nodes, context)) == {"a": "pass", "b": "fail", "c": "skipped", "d": "skipped"}


def python_facts(**changes: Any) -> Facts:
    return Facts({"file": "glmforge/__init__.py", "reason": None, "status": 0, "variables": {}} | changes)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "pass"),
        ({"reason": "ImportError: libtorch.so", "status": 1}, "fail"),
        ({"reason": "Command timed out", "status": None}, "fail"),
        ({"reason": "ModuleNotFoundError: No module named 'glmforge'", "status": 1}, "skipped"),
        ({"reason": "sh: 1: exec: python3.13: not found", "status": 127}, "skipped"),
    ],
)
def test_the_package_must_be_importable(changes: dict[str, Any], status: str) -> None:
    assert environment.imports(python_facts(**changes), CONTEXT).status == status


def test_harmful_variables_are_told() -> None:
    outcome = environment.variables(python_facts(variables={"NCCL_ALGO": "Tree", "OMP_NUM_THREADS": "4"}), CONTEXT)
    assert outcome.status in ("fail", "warning")
    assert "NCCL_ALGO" in outcome.value
    assert environment.variables(python_facts(variables={}), CONTEXT).status == "pass"
    assert environment.variables(python_facts(variables=None), CONTEXT).status == "skipped"


def test_this_python_has_the_package_and_keeps_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("TORCH_TOKEN", "secret")
    found = environment_probe.gather({"python": sys.executable})
    assert environment.imports(Facts(found), CONTEXT).status == "pass"
    assert found["variables"]["NCCL_DEBUG"] == "WARN"
    assert "secret" not in json.dumps(found)
    assert "not found" in environment_probe.gather({"python": "no such python; echo"})["reason"]


@contextmanager
def serving(pages: Mapping[str, str]) -> Iterator[int]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            self.send_response(200 if page is not None else 404)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


METRICS = '# HELP node_load1 1m load average.\nnode_load1 0.21\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 41\n'


def test_exporters_must_answer_with_metrics() -> None:
    with serving({"/metrics": METRICS}) as port:
        found = {"node_exporter": monitoring_probe.look(port), "dcgm_exporter": monitoring_probe.look(port)}
        assert monitoring.node_exporter(Facts(found), CONTEXT).value.startswith("2 samples")
        assert monitoring.dcgm_exporter(Facts(found), CONTEXT).value.startswith("1 samples")
    gone = {"node_exporter": monitoring_probe.look(port), "dcgm_exporter": None}
    assert monitoring.node_exporter(Facts(gone), CONTEXT).status == "fail"
    assert monitoring.dcgm_exporter(Facts(gone), CONTEXT).status == "skipped"
    with serving({"/metrics": "<html>login</html>\n"}) as port:
        assert monitoring.dcgm_exporter(Facts({"dcgm_exporter": monitoring_probe.look(port)}), CONTEXT).status == "fail"


def target(host: str, health: str = "up", error: str = "") -> dict[str, str]:
    return {"scrapeUrl": f"http://{host}:9100/metrics", "health": health, "lastError": error}


def test_every_node_is_a_target_that_is_up() -> None:
    targets = [target("a"), target("b", "down", "connection refused"), target("a")]
    page = json.dumps({"status": "success", "data": {"activeTargets": targets}})
    with serving({"/api/v1/targets": page}) as port:
        asked = session(["a", "b", "user@c"], monitoring={"prometheus": f"http://127.0.0.1:{port}"})
        outcomes = monitoring.prometheus(asked)
    assert statuses(outcomes) == {"a": "pass", "b": "fail", "user@c": "fail"}
    assert "connection refused" in outcomes["b"].value
    assert outcomes["user@c"].value == "is no target"
    assert statuses(monitoring.prometheus(asked)) == dict.fromkeys(asked.hosts, "fail")  # gone
    for page in ("no JSON", '{"data": {"activeTargets": [7]}}', '{"data": 7}'):
        with serving({"/api/v1/targets": page}) as port:
            asked = session(["a"], monitoring={"prometheus": f"http://127.0.0.1:{port}"})
            assert statuses(monitoring.prometheus(asked)) == {"a": "fail"}


# As sinfo of Slurm 22.05 prints it with -N -h -o '%N|%T|%G|%R|%E'.
SINFO = """a|idle|gpu:8|main|none
a|idle|gpu:8|urgent|none
b|drained|gpu:h100:4(S:0-1)|main|Xid 79 | on GPU 3
c|down*|gpu:8|main|Not responding
d|mixed|(null)|main|none
"""


def test_slurm_tells_state_reason_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "ask_slurm", lambda *command: SINFO)
    asked = session(["a", "b", "c", "d", "root@a.cluster", "z", "localhost"], slurm={"partition": "main"})
    states = slurm.state(asked)
    assert statuses(states) == {"a": "pass", "b": "fail", "c": "fail", "d": "pass", "root@a.cluster": "pass",
                                "z": "fail", "localhost": "skipped"}  # fmt: skip
    assert "Xid 79 | on GPU 3" in states["b"].value
    assert "does not respond" in states["c"].value
    assert statuses(slurm.gpus(asked))["a"] == "pass"
    assert slurm.gpus(asked)["b"].value == "4 GPUs"
    assert slurm.gpus(asked)["d"].value == "0 GPUs"


def test_without_slurm_nothing_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str) -> str:
        raise HostError("there is no 'sinfo' on this machine")

    monkeypatch.setattr(slurm, "ask_slurm", refuse)
    for check in (slurm.state, slurm.gpus, slurm.limits, slurm.munge):
        assert statuses(check(session(["a", "b"]))) == {"a": "skipped", "b": "skipped"}


@pytest.mark.parametrize(
    ("line", "status"),
    [("main|infinite|n/a", "pass"), ("main|2-00:00:00|1:00:00", "warning"), ("main|1:00:00|1:00:00", "pass")],
)
def test_a_short_default_time_is_told(monkeypatch: pytest.MonkeyPatch, line: str, status: str) -> None:
    monkeypatch.setattr(slurm, "ask_slurm", lambda *command: SINFO if "-N" in command else line + "\n")
    assert slurm.limits(session(["a"]))["a"].status == status


@pytest.mark.parametrize(
    ("before", "arguments", "is_up"),
    [((), (), True), ((), ("-N", "other"), False), ((), ("-N", os.uname().nodename), True),
     (("unshare", "--uts"), (), False)],
)  # fmt: skip
def test_the_daemon_of_another_node_is_not_this_hosts(
    tmp_path: Path, before: tuple[str, ...], arguments: tuple[str, ...], is_up: bool
) -> None:
    """A development cluster's runs on a machine that is no node itself."""
    if before and subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to be a host of its own")
    if slurm_probe.gather({})["slurmd_up"]:
        pytest.skip("this host is a node of Slurm's")
    slurmd = shutil.copy("/bin/bash", tmp_path / "slurmd")
    command = [*before, str(slurmd), "-c", "echo up; read", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert slurm_probe.gather({})["slurmd_up"] is is_up
        running.communicate()


def test_slurms_daemon_and_munge(monkeypatch: pytest.MonkeyPatch) -> None:
    with_slurm = session(["a", "b"], slurm={})
    up, down = Facts({"slurmd_there": True, "slurmd_up": True}), Facts({"slurmd_there": True, "slurmd_up": False})
    assert slurm.daemon(up, CONTEXT).status == "pass"
    assert slurm.daemon(down, with_slurm.context).status == "fail"
    assert slurm.daemon(down, CONTEXT).status == "skipped"

    def ask(_: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        if function == "sign":
            return {"a": Facts({"status": 0, "printed": "MUNGE:x:", "said": None})}, {}
        bad = {"status": 15, "said": "STATUS: Expired credential (15)"}
        again = {"status": 17, "said": "STATUS: Replayed credential (17)"}
        return {"a": Facts({"status": 0, "said": None}), "b": Facts(bad), "c": Facts(again)}, {}

    monkeypatch.setattr(slurm, "ask_nodes", ask)
    outcomes = slurm.munge(with_slurm)
    assert statuses(outcomes) == {"a": "pass", "b": "fail", "c": "pass"}
    assert "Expired credential" in outcomes["b"].value


class SharedDirectories:
    """Nodes that see the directories in `seen_by`, as `ask_nodes` would find them."""

    def __init__(self, seen_by: Mapping[str, str]) -> None:
        self.seen_by, self.files = seen_by, dict[str, dict[str, str]]()

    def ask(self, _: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        found: dict[str, Facts] = {}
        for host, given in arguments.items():
            files = self.files.setdefault(self.seen_by[host], {})
            if function == "put":
                files[given["name"]] = given["token"]
            names = given.get("names", [])
            found[host] = Facts({"tokens": {name: files.get(name) for name in names}})
        return found, {}


@pytest.mark.parametrize(
    ("seen_by", "failing"),
    [
        ({"a": "x", "b": "x", "c": "x", "d": "x"}, set()),
        ({"a": "x", "b": "x", "c": "own", "d": "x"}, {"c"}),
        ({"a": "own", "b": "x", "c": "x", "d": "x"}, {"a"}),
        ({"a": "x", "b": "own b", "c": "own c", "d": "x"}, {"b", "c"}),
    ],
)
def test_a_node_with_a_directory_of_its_own_is_named(
    monkeypatch: pytest.MonkeyPatch, seen_by: dict[str, str], failing: set[str]
) -> None:
    monkeypatch.setattr(shared_together, "ask_nodes", SharedDirectories(seen_by).ask)
    outcomes = shared_together.same(session(list(seen_by), shared_path="/shared"))
    assert {host for host, outcome in outcomes.items() if outcome.status == "fail"} == failing


def test_the_node_that_is_slow_on_shared_storage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_: Session, probe: str, function: str, arguments: Mapping[str, Any], limit_s: float) -> Told:
        return {host: Facts({"rate": 1e9 if host != "c" else 2e8, "milliseconds": 30.0}) for host in arguments}, {}

    monkeypatch.setattr(shared_together, "ask_nodes", ask)
    asked = session(["a", "b", "c"], shared_path="/shared")
    outcomes = shared_together.speed(asked)
    assert statuses(outcomes) == {"a": "pass", "b": "pass", "c": "fail"}
    assert "(all: 2.20)" in outcomes["a"].value
    assert statuses(shared_together.latency(asked)) == {"a": "warning", "b": "warning", "c": "warning"}
    assert statuses(shared_together.speed(session(["a"]))) == {"a": "skipped"}
