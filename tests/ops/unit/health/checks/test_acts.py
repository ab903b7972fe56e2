"""Checks in which nodes do something together, with answers of nodes that are made up; and what gathers the answers."""

import http.server
import json
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
from glmforge_ops.health.checks import data, gpu, job, network, storage, versions
from glmforge_ops.health.checks.check import Context, Gather, Outcome, Session, unknown
from glmforge_ops.health.checks.examine import CHECKS, run_check, session_of
from glmforge_ops.health.checks.thresholds import Thresholds
from glmforge_ops.hosts.fanout import Fanout

BY_NAME = {check.name: check for check in CHECKS}
Answering = Callable[[Gather, str, Mapping[str, Any]], dict[str, Any]]


def session(
    names: str, answers: Answering | None = None, facts: Mapping[Gather, Mapping[str, Any]] | None = None, **given: Any
) -> Session:
    """Hosts of one letter each, with the same facts; `answers` says what a function answers on a host."""

    def ask(function: Gather, arguments: Mapping[str, Mapping[str, Any]], limit_s: float) -> Any:
        assert answers is not None
        return {host: answers(function, host, of_host) for host, of_host in arguments.items()}

    context = Context(ClusterConfig.model_validate(given), Thresholds())
    return Session(context, {host: dict(facts or {}) for host in names}, ask)


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


def test_a_login_keeps_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("TORCH_TOKEN", "secret")
    found = versions.login({})
    assert found["variables"]["NCCL_DEBUG"] == "WARN"
    assert "secret" not in json.dumps(found)
    assert judged("environment.variables", {"variables": {"NCCL_TIMEOUT": "1"}}).status == "fail"


# Storage and data

PLACE = {"path": "/x", "there": True, "point": "/x", "type": "ext4", "source": "/dev/sda1", "options": "rw",
         "total_gb": 1000.0, "free_gb": 500.0, "free": 50.0, "state": "writable"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "status", "said"),
    [
        ("disk.local", {"there": False, "state": None, "path": None}, "skipped", "no local_path"),
        ("disk.local", {"state": "is not a directory"}, "fail", "is not a directory"),
        ("disk.local", {"state": "not writable: Read-only file system"}, "fail", "Read-only"),
        ("disk.kind", {"type": "nfs4"}, "fail", "served by other machines"),
        ("disk.kind", {"type": "fuse.glusterfs"}, "fail", "served by other machines"),
        ("disk.kind", {"type": "tmpfs"}, "warning", "tmpfs"),
        ("disk.space", {"free": 4.9}, "fail", "4.9 %"),
        ("shared.mounted", {"point": "/"}, "fail", "root file system"),
        ("shared.mounted", {}, "pass", "writable"),
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
    ("tool", "log", "health"),
    [
        ("nvme", {"critical_warning": 0, "media_errors": 0}, "pass"),
        ("nvme", {"critical_warning": {"value": 4}, "media_errors": 7}, "fail"),
        ("smartctl", {"nvme_smart_health_information_log": {"critical_warning": 0}}, "pass"),
        ("nvme", None, "skipped"),
    ],
)
def test_the_health_of_a_disk_is_read(monkeypatch: pytest.MonkeyPatch, tool: str, log: Any, health: str) -> None:
    monkeypatch.setattr(storage, "find_program", lambda name: tool == name or None)
    printed = "open: Permission denied" if log is None else json.dumps(log)
    monkeypatch.setattr(storage, "call", lambda *command, **_: (0, printed if command[0] == tool else "", ""))
    assert judged("nvme.health", {"disks": [storage._disk("nvme0")]}).status == health


def test_speed_is_held_against_the_kind_of_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    shared = storage.shared_speed(settings(shared_path=tmp_path))
    assert judged("shared.speed", shared).status == "pass"
    shared["speeds"][1]["speed"] = 0.1
    assert judged("shared.speed", shared).value == "read: 0.1 GB/s"
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
    assert said["a"] == said["e"] == said["f"] == "2 files, of 2 the content"
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
    ("rates", "expected"),
    [
        ({"a": 9, "b": 9, "c": 9, "d": 9}, "pppp"),
        ({"a": 9, "b": 1, "c": 1, "d": 9}, "ppfp"),  # c is slow in both directions: from b, and to d
        ({"a": 9, "b": 9, "c": 1, "d": 9}, "ppfp"),  # of a single slow pair it is the one that sends
        ({"a": 9, "b": "x", "c": 9, "d": 9}, "pfpp"),  # nonsense fails the node that said it, alone
        ({"a": 9, "b": float("inf"), "c": 9, "d": 9}, "pfpp"),
    ],
)
def test_the_node_behind_a_slow_link_is_named(rates: dict[str, Any], expected: str) -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"reason": None, "rate": rates[host], "trip": 10.0}

    facts = {network.interface: {"is_virtual": False, "speed": 1000, "address": None}}
    assert statuses("network.bandwidth", session("abcd", answer, facts)) == expected


def test_a_slow_round_trip_and_a_way_that_is_closed_are_named() -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"reason": "no answer" if host == "a" else None, "rate": 9.0, "trip": 900.0 if host == "b" else 10.0}

    facts = {network.interface: {"is_virtual": True, "speed": None}}
    outcomes = run_check(BY_NAME["network.bandwidth"], session("abc", answer, facts))
    assert [outcome.status.value for outcome in outcomes.values()] == ["fail", "warning", "pass"]
    assert outcomes["a"].value == "does not reach b (no answer)"
    assert statuses("network.bandwidth", session("a", answer, facts)) == "s"


def test_nodes_that_wait_for_each_other_are_asked_at_the_same_time() -> None:
    batches: list[list[str]] = []

    def ask(function: Gather, arguments: Mapping[str, Mapping[str, Any]], limit_s: float) -> Any:
        batches.append(list(arguments))
        return {host: {"reason": None, "rate": 9.0, "trip": 1.0, "token": given["token"]}
                for host, given in arguments.items()}  # fmt: skip

    asked = session("abcde", facts={network.interface: {}}, ssh={"at_once": 3})
    asked = Session(asked.context, asked.facts, ask)
    assert statuses("network.port", asked) == "ppppp"
    assert statuses("network.bandwidth", asked) == "ppppp"
    assert batches == [["a", "b", "d"], ["a", "c", "e"], ["a", "c", "e"], ["b", "d"]]


@pytest.mark.parametrize(
    ("lost", "taken", "expected"), [("", False, "ppp"), ("b", False, "pfp"), ("bc", False, "fss"), ("", True, "fss")]
)
def test_a_port_that_no_node_reaches_is_the_masters(lost: str, taken: bool, expected: str) -> None:
    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if host == "a":
            return {"taken": "Address already in use"} if taken else {}
        return {"reason": "no answer" if host in lost else None, "token": given["token"]}

    assert statuses("network.port", session("abc", answer, {network.interface: {}})) == expected


def test_two_nodes_measure_the_way_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One listens in a thread, the other calls it."""
    with socket.create_server(("", 0)) as free:
        common = {"port": free.getsockname()[1], "token": "secret", "start_at": None, "callers": None, "to": None}
        assert network.talk({}, common | {"callers": 1}) == {"taken": "Address already in use"}
    answers: list[dict[str, Any]] = []
    for start_at in (None, 0.0):
        listener = threading.Thread(target=network.talk, args=({}, common | {"callers": 1}))
        listener.start()
        answers.append(network.talk({}, common | {"to": "127.0.0.1", "start_at": start_at}))
        listener.join()
    assert answers[0] == {"reason": None, "token": "secret"}
    assert answers[1]["trip"] > 0
    assert answers[1]["rate"] > 0
    monkeypatch.setattr(network, "_PATIENCE_S", 0.0)
    assert network.talk({}, common | {"to": "127.0.0.1"})["reason"] == "Connection refused"


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


# GPUs together


def test_an_all_reduce_is_held_against_the_model_of_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(*command: str, limit_s: float) -> tuple[int, str, str]:
        if row is not None:
            Path(command[-1]).write_text(json.dumps({"device": model, "rows": [row]}))
        return 1, "", "glmforge: no NCCL"

    monkeypatch.setattr(gpu, "call", bench)
    monkeypatch.setattr(gpu, "_count_devices", lambda: 8)
    model, row = "NVIDIA H100 80GB HBM3", {"busbw": 400.0, "wrong": 0}
    found = gpu.all_reduce(settings())
    assert judged("nccl.bandwidth", found).status == "pass"
    assert judged("nccl.bandwidth", found | {"busbw": 300.0}).status == "fail"
    assert judged("nccl.bandwidth", found | {"device": "GeForce"}).status == "skipped"
    assert judged("nccl.bandwidth", {"busbw": None}).status == "skipped"
    row = {"busbw": 400.0, "wrong": 2}
    with pytest.raises(ValueError, match="2 elements of the sum are wrong"):
        gpu.all_reduce(settings())
    row = None
    with pytest.raises(ValueError, match="no NCCL"):
        gpu.all_reduce(settings())


def test_dcgms_failing_tests_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_count_devices", lambda: 1)
    printed = (
        "| Diagnostic                | Result   |\n| PCIe           | Pass    |\n| Memory         | Fail - GPU 1 |\n"
    )
    for ended, value in (((226, printed, ""), "Memory"), ((0, printed[:70], ""), "none"), ((1, "", "no host engine"),
                         "no host engine")):  # fmt: skip
        monkeypatch.setattr(gpu, "call", lambda *command, ended=ended, **_: ended)
        assert judged("gpu.diagnostics", gpu.diagnose({})).value == value
    monkeypatch.setattr(gpu, "call", lambda *command, **_: (None, "", ""))
    assert judged("gpu.diagnostics", gpu.diagnose({})).status == "skipped"


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


def test_every_node_is_a_target_that_is_up() -> None:
    targets = [{"scrapeUrl": f"http://{host}:9100/metrics", "health": health, "lastError": "refused"}
               for host, health in (("a", "up"), ("b", "down"))]  # fmt: skip
    facts = {network.interface: {"address": None}}
    for page, expected in (
        (json.dumps({"data": {"activeTargets": targets}}), "pff"),
        ("no JSON", "fff"),
        ('{"data": {"activeTargets": [7]}}', "fff"),
    ):
        with serving({"/api/v1/targets": page}) as port:
            asked = session("abc", facts=facts, monitoring={"prometheus": f"http://127.0.0.1:{port}"})
            assert statuses("monitoring.metrics", asked) == expected
    assert statuses("monitoring.metrics", asked) == "fff"  # gone
    assert statuses("monitoring.metrics", session("a")) == "s"


# As sinfo of Slurm 22.05 prints it with -N -h -o '%N|%T|%E'.
SINFO = """a|idle|none
b|drained|Xid 79 | on GPU 3
c|down*|Not responding
d|mixed|none
"""


def test_slurm_reports_state_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glmforge_ops.hosts.machines.ask_slurm", lambda *command: SINFO)
    asked = session("abcdz", slurm={"partition": "main"})
    assert statuses("slurm.state", asked) == "pffpf"
    outcomes = run_check(BY_NAME["slurm.state"], asked)
    assert outcomes["b"].value == "drained: Xid 79 | on GPU 3"
    assert outcomes["c"].value == "down, does not respond: Not responding"
    assert statuses("slurm.state", session("z")) == "s"


def test_without_slurm_nothing_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*command: str) -> str:
        raise HostError("there is no 'sinfo' on this machine")

    monkeypatch.setattr("glmforge_ops.hosts.machines.ask_slurm", refuse)
    assert statuses("slurm.state", session("ab")) == "ss"


# The job

WELL = {str(step): repr(6.0 - step / 10) for step in range(1, 7)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ppp"),
        ({"data": "no glmforge"}, "fss"),
        ({"status": {"a": -9, "b": 1, "c": -9}}, "sfs"),
        ({"killed": False}, "ssf"),
        ({"whole": {"1": "6.0"}, "broken": {"1": "6.0"}}, "fff"),
        ({"broken": WELL | {"6": "5.400001"}}, "fff"),
    ],
)
def test_the_end_of_a_run_is_judged(changes: dict[str, Any], expected: str) -> None:
    asked: list[Gather] = []

    def ask(function: Gather, arguments: Mapping[str, Mapping[str, Any]], limit_s: float) -> Any:
        asked.append(function)
        if function is job.prepare and "data" in changes:
            return {host: unknown(changes["data"]) for host in arguments}
        return {host: answer(function, host, given) for host, given in arguments.items()}

    def answer(function: Gather, host: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if function is job.train:
            is_victim = given["victim"] == given["rank"]
            status = -9 if is_victim else changes.get("status", {}).get(host, 0)
            killed = is_victim and changes.get("killed", True)
            return {"status": status, "said": "so", "killed": killed, "waited": status == -9 and not is_victim}
        return {"whole": WELL, "broken": WELL} | changes

    given = session("abc", facts={network.interface: {}}, shared_path="/shared")
    assert statuses("job.recovery", Session(given.context, given.facts, ask)) == expected
    assert asked[-1] is job.remove
    assert statuses("job.recovery", session("ab")) == "ss"


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
