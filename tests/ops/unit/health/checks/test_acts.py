"""Checks in which nodes do something together, with answers of nodes that are made up; and what gathers the answers."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge.config.schema import RunConfig
from glmforge.errors import HostError
from glmforge.runtime.hostfile import HostLine
from glmforge_ops.health.checks import cards, data, gpu, hosts, job, network, services, storage, versions
from glmforge_ops.health.checks.check import Context, Gather, Outcome, Session
from glmforge_ops.health.checks.examine import CHECKS, run_check, session_of
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Answer, Fanout
from glmforge_ops.hosts.fanout import Outcome as Ending

BY_NAME = {check.name: check for check in CHECKS}
Answering = Callable[[Gather, str, Mapping[str, Any]], dict[str, Any]]


def session(
    names: str, answers: Answering | None = None, facts: Mapping[Gather, Mapping[str, Any]] | None = None, **given: Any
) -> Session:
    """Hosts of one letter each, with the same facts; `answers` says what a function answers on a host."""

    def ask(function: Gather, arguments: Mapping[str, Mapping[str, Any]], limit_s: float) -> Any:
        assert answers is not None
        return {host: answers(function, host, of_host) for host, of_host in arguments.items()}, {}

    context = Context(ClusterConfig.model_validate(given), Thresholds(), {"a": HostLine("a", 8), "b": HostLine("b", 4)})
    return Session(context, list(names), {host: dict(facts or {}) for host in names}, ask, lambda *_: {})


def statuses(name: str, of: Session) -> str:
    """The first letters of its outcomes, in the order of hosts."""
    return "".join(outcome.status.value[0] for outcome in run_check(BY_NAME[name], of).values())


def judged(name: str, facts: Mapping[str, Any], **given: Any) -> Outcome:
    gather = BY_NAME[name].gather
    assert gather is not None
    context = Context(ClusterConfig.model_validate(given), Thresholds())
    return run_check(BY_NAME[name], session_of({"a": {gather: facts}}, context, Fanout()))["a"]


def settings(**given: Any) -> dict[str, Any]:
    return ClusterConfig(**given).model_dump(mode="json")


# Hosts and logins


def test_two_names_of_one_machine_and_wrong_slots_are_told() -> None:
    machines = [("1 x", 8), ("1 x", 8), ("1 z", 0), ("2 x", 8)]
    facts = {host: {hosts.identity: {"machine": name, "gpus": gpus}}
             for host, (name, gpus) in zip("abcd", machines, strict=True)}  # fmt: skip
    found = session_of(facts, session("abcd").context, Fanout())
    assert statuses("hostfile.machines", found) == "ffpp"
    assert statuses("hostfile.slots", found) == "pfss"


def test_keys_that_others_can_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    assert judged("ssh.keys", hosts.ssh_files({})).status == "skipped"
    (tmp_path / ".ssh").mkdir(mode=0o700)
    for name, text, mode in (("id_x", "-----BEGIN OPENSSH PRIVATE KEY-----\n", 0o600), ("id_x.pub", "ssh x\n", 0o644)):
        (tmp_path / ".ssh" / name).write_text(text)
        (tmp_path / ".ssh" / name).chmod(mode)
    assert judged("ssh.keys", hosts.ssh_files({})).status == "pass"
    (tmp_path / ".ssh/id_x").chmod(0o640)
    assert judged("ssh.keys", hosts.ssh_files({})).value == str(tmp_path / ".ssh/id_x")


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (0, "", "reaches b"),
        (255, "Host key verification failed.", "host key is not known"),
        (255, "root@b: Permission denied (publickey).", "refuses the key"),
        (None, "ssh is not installed", "ssh is not installed"),
    ],
)
def test_why_a_node_is_not_reached_by_another(status: int | None, said: str, expected: str) -> None:
    def answer(_: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        assert "BatchMode=yes" in given["command"]
        assert given["command"][-2] == ("b" if host == "a" else "a")
        return {"status": status if host == "a" else 0, "said": said}

    asked = session("ab", answer)
    outcomes = run_check(BY_NAME["ssh.nodes"], asked)
    assert expected in outcomes["a"].value
    assert outcomes["b"].status == "pass"
    assert statuses("ssh.nodes", session("a")) == "s"


@pytest.mark.parametrize(
    ("kind", "status"), [("fuse.juicefs", "fail"), ("panfs", "fail"), ("fuse.ceph", "fail"), ("xfs", "pass")]
)
def test_a_disk_of_the_nodes_own_is_what_setup_takes_for_one(kind: str, status: str) -> None:
    facts = {"path": "/x", "there": True, "point": "/x", "type": kind}
    assert judged("disk.kind", facts, local_path="/x").status == status


def test_a_python_below_a_folder_with_a_space(tmp_path: Path) -> None:
    """It is one word for every check, as it is in the scripts of a job."""
    python = tmp_path / "my env" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert versions.versions({"python": str(python), "expected": {}})["runs"] == "runs"


def test_this_python_has_the_package_and_keeps_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("TORCH_TOKEN", "secret")
    found = versions.login({"python": sys.executable})
    assert judged("environment.import", found).status == "pass"
    assert found["variables"]["NCCL_DEBUG"] == "WARN"
    assert "secret" not in json.dumps(found)
    assert judged("environment.import", versions.login({"python": "no such python; echo"})).status == "skipped"
    assert judged("environment.import", found | {"imports": "ImportError: libtorch.so"}).status == "fail"
    assert judged("environment.variables", {"variables": {"NCCL_TIMEOUT": "1"}}).status == "fail"


# Storage and data

PLACE = {"path": "/x", "there": True, "point": "/x", "type": "ext4", "source": "/dev/sda1", "options": "rw",
         "total_gb": 1000.0, "free_gb": 500.0, "free": 50.0, "free_inodes": 50.0, "state": "writable"}  # fmt: skip
NFS = {"type": "nfs4", "options": "rw,vers=4.2,hard,nconnect=8"}


@pytest.mark.parametrize(
    ("name", "changes", "status", "said"),
    [
        ("disk.local", {"there": False, "state": None, "path": None}, "skipped", "no local_path"),
        ("disk.local", {"state": "is no directory"}, "fail", "is no directory"),
        ("disk.local", {"state": "not writable: Read-only file system"}, "fail", "Read-only"),
        ("disk.kind", NFS, "fail", "served by other machines"),
        ("disk.kind", {"type": "fuse.glusterfs"}, "fail", "served by other machines"),
        ("disk.kind", {"type": "tmpfs"}, "warning", "tmpfs"),
        ("disk.space", {"free": 4.9}, "fail", "4.9 %"),
        ("disk.inodes", {"free_inodes": 1.0}, "fail", "1 %"),
        ("shared.mounted", {"point": "/"}, "fail", "root file system"),
        ("shared.mounted", {}, "pass", "writable"),
        ("shared.options", {"type": "gpfs"}, "pass", "gpfs"),
        ("shared.options", NFS, "warning", "one server"),
        ("shared.options", NFS | {"options": "rw,soft,noac"}, "fail", "soft, noac, no nconnect"),
        ("checkpoints.space", {"free_gb": 599.0}, "fail", "599.0 GB"),
        ("checkpoints.space", {"free_gb": 601.0}, "pass", "601.0 GB"),
    ],
)
def test_a_directory_is_judged(name: str, changes: dict[str, Any], status: str, said: str) -> None:
    outcome = judged(name, PLACE | changes, checkpoint_path="/x", planned_checkpoint_gb=600)
    assert (outcome.status.value, said in outcome.value) == (status, True), outcome


def test_what_is_written_to_find_out_is_removed(tmp_path: Path) -> None:
    assert storage.local(settings(local_path=tmp_path))["state"] == "writable"
    assert list(tmp_path.iterdir()) == []
    assert judged("disk.local", storage.local(settings(local_path=tmp_path / "gone"))).status == "fail"
    assert str(tmp_path) in [path for mount in storage.mounts(settings(local_path=tmp_path))["mounts"]
                             for path in mount["paths"]]  # fmt: skip


# As nvme-cli 1.16, nvme-cli 2.4 and smartctl 7.3 write it, shortened.
@pytest.mark.parametrize(
    ("tool", "log", "health", "wear"),
    [
        ("nvme", {"critical_warning": 0, "percent_used": 3, "media_errors": 0}, "pass", "pass"),
        ("nvme", {"critical_warning": {"value": 4}, "percent_used": 3, "media_errors": 7}, "fail", "pass"),
        ("smartctl", {"nvme_smart_health_information_log": {"critical_warning": 0, "percentage_used": 91}}, "pass",
         "warning"),
        ("nvme", None, "skipped", "skipped"),
    ],
)  # fmt: skip
def test_the_health_of_a_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, log: Any, health: str, wear: str
) -> None:
    monkeypatch.setattr(storage, "find_program", lambda name: tool == name or None)
    printed = "open: Permission denied" if log is None else json.dumps(log)
    monkeypatch.setattr(storage, "call", lambda *command, **_: (0, printed if command[0] == tool else "", ""))
    facts = {"disks": [storage._disk("nvme0")]}
    assert (judged("nvme.health", facts).status, judged("nvme.wear", facts).status) == (health, wear)


def test_the_speed_of_a_disk_is_held_against_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # fio 3.33, shortened; notes come before the JSON.
    printed = (
        'fio: note\n{"jobs": [{"error": 0, "read": {"bw_bytes": 1.9e9, "iops": 335}, "write": {"bw_bytes": 3e9}}]}'
    )
    monkeypatch.setattr(storage, "find_program", lambda name: name)
    monkeypatch.setattr(storage, "call", lambda *command, **_: (0, printed, ""))
    facts = storage.disk_speed(settings(local_path=tmp_path))
    assert list(tmp_path.iterdir()) == []
    for speed in facts["speeds"]:
        speed["device"] = "nvme0n1"
    assert judged("disk.speed", facts).value == "read: 1.9 GB/s; iops: 335 reads/s"
    facts["speeds"][0]["device"] = "sda1"
    assert "no limit is known for sda1" in judged("disk.speed", facts | {"speeds": facts["speeds"][:1]}).value
    monkeypatch.setattr(storage, "call", lambda *command, **_: (1, "", "bad option"))
    with pytest.raises(ValueError, match="fio: bad option"):
        storage.disk_speed(settings(local_path=tmp_path))


@pytest.mark.parametrize(
    ("seen_by", "expected"), [("xxxx", "pppp"), ("xxox", "ppfp"), ("oxxx", "fppp"), ("xopx", "pffp")]
)
def test_a_node_with_a_shared_directory_of_its_own_is_named(tmp_path: Path, seen_by: str, expected: str) -> None:
    where = dict(zip("abcd", seen_by, strict=True))
    for name in set(seen_by):
        (tmp_path / name).mkdir()

    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return function({"shared_path": str(tmp_path / where[host])}, given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.time, "sleep", lambda seconds: None)
        patch.setattr(storage.time, "monotonic", iter(range(0, 10**6, 6)).__next__)
        assert statuses("shared.same", session("abcd", answer, {storage.shared: PLACE}, shared_path="/x")) == expected
    assert [list((tmp_path / name).iterdir()) for name in set(seen_by)] == [[]] * len(set(seen_by))


def test_the_node_that_is_slow_on_shared_storage_is_named(tmp_path: Path) -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"rate": 1.0 if host != "c" else 0.2, "milliseconds": 30.0}

    assert statuses("shared.speed", session("abc", answer, {storage.shared: PLACE}, shared_path="/x")) == "ppf"
    assert statuses("shared.latency", session("abc", answer, {storage.shared: PLACE}, shared_path="/x")) == "www"
    given = {"folder": "f", "name": "n", **storage.start_together(["a"])}
    assert storage.write(settings(shared_path=tmp_path), given)["rate"] > 0
    assert storage.read(settings(shared_path=tmp_path), given)["rate"] > 0


def write_data(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "train.bin").write_bytes(bytes(range(256)) * 2000)
    (directory / "sub/train.idx").write_bytes(b"index")
    return directory


def compared(name: str, nodes: Mapping[str, Path]) -> dict[str, str]:
    """As if each directory were the same path on its node."""
    gather = BY_NAME[name].gather
    assert gather is not None
    facts = {}
    for host, directory in nodes.items():
        found = gather(settings(data_paths=[directory]))
        facts[host] = {gather: {"files": [[file.replace(str(directory), "/d"), had] for file, had in found["files"]]}}
    return {host: outcome.value for host, outcome in
            run_check(BY_NAME[name], session_of(facts, session("a").context, Fanout())).items()}  # fmt: skip


def test_data_that_differ_are_named(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "abcdef"} | {"g": tmp_path / "gone"}
    (nodes["b"] / "sub/train.idx").unlink()
    with (nodes["c"] / "train.bin").open("r+b") as file:
        file.seek(256_000)
        file.write(b"other")
    (nodes["d"] / "more.bin").write_bytes(b"more")
    said = compared("data.equal", nodes)
    assert said["a"] == said["e"] == said["f"] == "names, sizes and blocks of 2 files"
    assert said["b"] == "/d/sub/train.idx is missing"
    assert said["c"] == "/d/train.bin differs"
    assert said["d"] == "/d/more.bin is on few nodes only"
    assert "see data.there" in said["g"]
    assert judged("data.there", data.there(settings(data_paths=[nodes["a"]]))).status == "pass"
    assert judged("data.there", data.there(settings(data_paths=[nodes["g"]]))).status == "fail"
    assert set(compared("data.equal", {"a": nodes["a"], "c": nodes["c"]}).values()) == {"/d/train.bin differs"}


def test_a_byte_between_the_samples_is_found_by_reading_all(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "abc"}
    with (nodes["b"] / "train.bin").open("r+b") as file:
        file.seek(100_000)  # the samples end at 65,536 and begin again at 223,232
        file.write(b"other")
    assert len(set(compared("data.equal", nodes).values())) == 1
    assert compared("data.whole", nodes)["b"] == "/d/train.bin differs"
    assert [name for name, _ in data.list_files(str(nodes["a"] / "train"))] == ["train.bin"]  # a prefix of shards


# Network


@pytest.mark.parametrize(
    ("rates", "guilty"),
    [
        ({"a": 9, "b": 9, "c": 9, "d": 9}, ""),
        ({"a": 9, "b": 1, "c": 1, "d": 9}, "c"),  # c is slow in both directions: from b, and to d
        ({"a": 9, "b": 9, "c": 1, "d": 9}, "c"),  # of a single slow pair it is the one that sends
    ],
)
def test_the_node_behind_a_slow_link_is_named(rates: dict[str, float], guilty: str) -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"port": 1, "address": host, "pid": None, "reason": None, "rate": rates[host], "trip": 10.0}

    facts = {network.interface: {"is_virtual": False, "speed": 1000}}
    outcomes = run_check(BY_NAME["network.bandwidth"], session("abcd", answer, facts))
    assert "".join(host for host, outcome in outcomes.items() if outcome.status == "fail") == guilty
    assert statuses("network.latency", session("abcd", answer)) == "pppp"


@pytest.mark.parametrize(
    ("lost", "port", "expected"), [("", 29500, "ppp"), ("b", 29500, "pfp"), ("bc", 29500, "fss"), ("", None, "fss")]
)
def test_a_port_that_nobody_reaches_is_the_masters(lost: str, port: int | None, expected: str) -> None:
    token = ""

    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal token
        token = given.get("token", token)
        if function is network.connect:
            return {"reason": "no answer" if host in lost else None, "token": token}
        return {"port": port, "address": "10.0.0.1", "reason": "Address already in use", "pid": None}

    assert "".join(statuses("network.port", session("abc", answer))) == expected


def test_a_listener_is_reached_measured_and_stopped() -> None:
    cluster = settings(interface="lo")
    found = network.listen(cluster, {"port": 0, "token": "secret", "peer": None})
    where = {"address": "127.0.0.1", "port": found["port"]}
    try:
        assert network.listen(cluster, where | {"token": "", "peer": None})["reason"] == "Address already in use"
        reached = network.connect(cluster, where)
        assert (reached["token"], reached["trip"] > 0) == ("secret", True)
        assert network.connect(cluster, where | storage.start_together(["a"]))["rate"] > 0
    finally:
        network.stop(cluster, {"pid": found["pid"], "began": found["began"]})
        os.waitpid(found["pid"], 0)
    assert network.connect(cluster, where)["reason"] == "Connection refused"


def test_names_must_lead_to_the_same_address_everywhere() -> None:
    answers = {"a": "10.0.0.1", "b": "10.0.0.1", "c": "10.0.0.9", "d": "127.0.1.1", "e": None}
    asked = session("abcde", lambda _, host, given: {"names": {"x": answers[host]}})
    assert statuses("network.names", asked) == "ppfff"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert network.resolve({}, {"names": ["localhost", "no.such.invalid"]})["names"]["no.such.invalid"] is None


def test_this_machine_has_an_interface_or_says_so() -> None:
    found = network.interface(settings(interface="lo"))
    assert (found["state"], found["address"]) == ("lo up", "127.0.0.1")
    assert judged("network.link", found).status == "pass"
    assert judged("network.link", network.interface(settings(interface="no-such0"))).value == "no-such0 is not there"
    ports = found | {"ephemeral": [1024, 65535]}
    assert judged("network.ephemeral", ports).value == "with master_port 29500"


# GPUs and cards together


def answered(text: str, status: int = 0) -> Answer:
    return Answer("a", Ending.DONE if status == 0 else Ending.FAILED, status, text.encode())


@pytest.mark.parametrize(
    ("row", "model", "status"),
    [
        ({"busbw": 400.0, "wrong": 0}, "NVIDIA H100 80GB HBM3", "pass"),
        ({"busbw": 300.0, "wrong": 0}, "NVIDIA H100 80GB HBM3", "fail"),
        ({"busbw": 400.0, "wrong": 2}, "NVIDIA H100 80GB HBM3", "fail"),
        ({"busbw": 400.0, "wrong": 0}, "GeForce", "skipped"),
        (None, "GeForce", "fail"),
    ],
)
def test_an_all_reduce_is_held_against_the_model_of_gpu(row: Any, model: str, status: str) -> None:
    text = "Traceback" if row is None else json.dumps({"rows": [row]})
    assert gpu._judge_bench(answered(text), model, session("a").context).status == status


def test_rdma_latency_is_measured_in_a_ring() -> None:
    shown = " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n 8  1000  1.5  7.1  {}  1.6  0.2  1.8  2.9\n"
    rounds: list[set[str]] = []

    def shell(scripts: Mapping[str, str], limit_s: float) -> dict[str, Answer]:
        rounds.append(set(scripts))
        assert not any("@" in script for script in scripts.values()), "ib_write_lat knows no accounts"
        return {host: answered(shown.format(9.0 if host == "root@b" else 1.6)) for host in scripts}

    port = {"device": "mlx5_0", "port": "1", "layer": "InfiniBand", "state": "ACTIVE LinkUp"}
    asked = session("abc", facts={cards.ports: {"ports": [port]}})
    facts = {host.replace("b", "root@b"): found for host, found in asked.facts.items()}
    asked = Session(asked.context, list(facts), facts, asked.ask, shell)
    assert statuses("infiniband.latency", asked) == "pfp"
    assert rounds == [{"a", "root@b"}, {"root@b", "c"}, {"a", "c"}]


def test_dcgms_failing_tests_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [{"gpu_id": "0", "status": "Pass"}, {"gpu_id": "1", "status": "Fail"}]
    tests = [{"name": "Memory", "results": results}, {"name": "PCIe", "results": results[:1]}]
    printed = json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})
    monkeypatch.setattr(gpu, "call", lambda *command, **_: (1, f"note\n{printed}", ""))
    asked = session("a", lambda function, host, given: function({}, given), gpus_per_node=1)
    assert run_check(BY_NAME["gpu.diagnostics"], asked)["a"].value == "failed: Memory"
    monkeypatch.setattr(gpu, "call", lambda *command, **_: (None, "", ""))
    assert statuses("gpu.diagnostics", asked) == "s"


# Services


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


def test_exporters_must_answer_with_metrics() -> None:
    with serving({"/metrics": '# HELP x\nnode_load1 0.21\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 41\n'}) as port:
        both = services.exporters({"monitoring": {"node_exporter_port": port, "dcgm_exporter_port": port}})
    assert judged("monitoring.node", both).value.startswith("2 samples")
    assert judged("monitoring.gpu", both).value.startswith("1 samples")
    gone = services.exporters({"monitoring": {"node_exporter_port": port, "dcgm_exporter_port": None}})
    assert (judged("monitoring.node", gone).status, judged("monitoring.gpu", gone).status) == ("fail", "skipped")


def test_every_node_is_a_target_that_is_up() -> None:
    targets = [{"scrapeUrl": f"http://{host}:9100/metrics", "health": health, "lastError": "refused"}
               for host, health in (("a", "up"), ("b", "down"))]  # fmt: skip
    for page, expected in (
        (json.dumps({"data": {"activeTargets": targets}}), "pff"),
        ("no JSON", "fff"),
        ('{"data": {"activeTargets": [7]}}', "fff"),
    ):
        with serving({"/api/v1/targets": page}) as port:
            asked = session("abc", monitoring={"prometheus": f"http://127.0.0.1:{port}"})
            assert statuses("monitoring.prometheus", asked) == expected
    assert statuses("monitoring.prometheus", asked) == "fff"  # gone


# As sinfo of Slurm 22.05 prints it with -N -h -o '%N|%T|%G|%E'.
SINFO = """a|idle|gpu:8|none
b|drained|gpu:h100:4(S:0-1)|Xid 79 | on GPU 3
c|down*|gpu:4(S:0-3),gpu:l4:4|Not responding
d|mixed|(null)|none
"""


def test_slurm_tells_state_reason_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glmforge_ops.hosts.machines.ask_slurm", lambda *command: SINFO)
    asked = session("abcdz", slurm={"partition": "main"})
    assert statuses("slurm.state", asked) == "pffpf"
    outcomes = run_check(BY_NAME["slurm.state"], asked)
    assert outcomes["b"].value == "drained: Xid 79 | on GPU 3"
    assert outcomes["c"].value == "down, does not respond: Not responding"
    found = [outcome.value for outcome in run_check(BY_NAME["slurm.gpus"], asked).values()]
    assert found == ["8 GPUs", "4 GPUs", "8 GPUs", "0 GPUs", "not a Slurm node"]


def test_without_slurm_nothing_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str) -> str:
        raise HostError("there is no 'sinfo' on this machine")

    monkeypatch.setattr("glmforge_ops.hosts.machines.ask_slurm", refuse)
    assert [statuses(name, session("ab")) for name in ("slurm.state", "slurm.gpus", "slurm.munge")] == ["ss"] * 3
    down = {"there": True, "up": False}
    assert (judged("slurm.daemon", down).status, judged("slurm.daemon", down, slurm={}).status) == ("skipped", "fail")


def test_munge_must_read_what_the_first_node_signs() -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        status = {"a": 0, "b": 15, "c": 17}[host] if given else 0
        return {"status": status, "credential": "MUNGE:x:", "said": "STATUS: Expired credential (15)"}

    assert statuses("slurm.munge", session("abc", answer, slurm={})) == "pfp"


@pytest.mark.parametrize(("name", "is_up"), [((), True), (("-N", "other"), False)])
def test_the_daemon_of_another_node_is_not_this_hosts(tmp_path: Path, name: tuple[str, ...], is_up: bool) -> None:
    """A development cluster's runs on a machine that is no node itself."""
    if services.slurmd({})["up"]:
        pytest.skip("this host is a node of Slurm's")
    slurmd = tmp_path / "slurmd"
    slurmd.write_bytes(Path("/bin/bash").read_bytes())
    slurmd.chmod(0o755)
    command = [str(slurmd), "-c", "echo up; read", *name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        assert services.slurmd({})["up"] is is_up
        running.communicate()


# The job

WELL = {str(step): repr(6.0 - step / 10) for step in range(1, 7)}


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("job.runs", {}, "ppp"),
        ("job.runs", {"reason": "no glmforge"}, "fss"),
        ("job.runs", {"status": {"a": -9, "b": 1, "c": -9}}, "sfs"),
        ("job.runs", {"whole": {"1": "6.0"}}, "fff"),
        ("job.recovery", {}, "ppp"),
        ("job.recovery", {"status": {"b": 1}}, "sss"),
        ("job.recovery", {"killed": False}, "ssf"),
        ("job.recovery", {"broken": WELL | {"6": "5.400001"}}, "fff"),
    ],
)
def test_the_end_of_a_run_is_judged(name: str, changes: dict[str, Any], expected: str) -> None:
    asked: list[Gather] = []

    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(function)
        if function is job.train:
            is_victim = given["victim"] == given["rank"]
            status = -9 if is_victim else changes.get("status", {}).get(host, 0)
            killed = is_victim and changes.get("killed", True)
            return {"status": status, "said": "so", "killed": killed, "waited": status == -9 and not is_victim}
        return {"reason": None, "whole": WELL, "broken": WELL} | changes

    assert statuses(name, session("abc", answer, {network.interface: {}}, shared_path="/shared")) == expected
    assert asked[-1] is job.remove
    assert statuses(name, session("ab")) == "ss"


def test_its_run_is_one_that_glmforge_takes(tmp_path: Path) -> None:
    assert RunConfig.model_validate(job.settings(str(tmp_path), "whole", 3)).phases[0].batch_size % 3 == 0


def test_the_victim_is_killed_and_who_waits_for_a_failed_process_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]
    given = {"folder": str(tmp_path), "run": "broken", "rank": 1, "victim": 1}
    (tmp_path / "broken/checkpoints/step-00000002").mkdir(parents=True)
    with subprocess.Popen(sleeping) as process:
        assert job.watch(process, given) == (True, False)
    assert process.returncode == -9
    monkeypatch.setattr(job, "GRACE_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert job.watch(process, given | {"run": "whole", "victim": None}) == (False, False)
    with subprocess.Popen(sleeping) as process:
        assert job.watch(process, given | {"run": "whole", "victim": None, "rank": 0}) == (False, True)
        process.kill()
