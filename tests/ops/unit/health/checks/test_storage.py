"""Checks of disks, shared storage, checkpoints and data, at the probe's boundary."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config.cluster import ClusterConfig
from glmforge_ops.health.checks import checkpoints, data, disk, disk_speed, nvme, shared
from glmforge_ops.health.checks.check import Context
from glmforge_ops.health.checks.facts import Facts
from glmforge_ops.health.checks.probes import checkpoints as checkpoints_probe
from glmforge_ops.health.checks.probes import data as data_probe
from glmforge_ops.health.checks.probes import data_there, data_whole
from glmforge_ops.health.checks.probes import disk as disk_probe
from glmforge_ops.health.checks.probes import disk_speed as disk_speed_probe
from glmforge_ops.health.checks.probes import nvme as nvme_probe
from glmforge_ops.health.checks.probes import shared as shared_probe
from glmforge_ops.health.checks.thresholds import Thresholds

CONTEXT = Context(ClusterConfig(), Thresholds())


def settings(**given: Any) -> dict[str, Any]:
    """What a probe is handed."""
    return ClusterConfig(**given).model_dump(mode="json")


def mount(kind: str = "ext4", options: str = "rw,relatime", point: str = "/local") -> dict[str, Any]:
    return {"point": point, "type": kind, "source": "/dev/nvme0n1", "options": options, "device": "259:0"}


def place(**changes: Any) -> Facts:
    found: dict[str, Any] = {"path": "/local", "kind": "directory", "mount": mount(), "writable": True}
    found |= {"write_error": None, "write_reason": None, "total": 1e12, "free": 5e11, "inodes": 1e6, "inodes_free": 5e5}
    found |= {"stripe_count": None, "root_device": False}
    return Facts(found | changes)


READ_ONLY = {"writable": False, "write_error": "EROFS", "write_reason": "Read-only file system"}
DENIED = {"writable": False, "write_error": "EACCES", "write_reason": "Permission denied"}
NO_ROOM = {"writable": False, "write_error": "ENOSPC", "write_reason": "No space left on device"}


@pytest.mark.parametrize(
    ("judge", "changes", "status", "said"),
    [
        (disk.local, {}, "pass", "writable"),
        (disk.local, {"path": None}, "skipped", "no local_path"),
        (disk.local, {"kind": None}, "fail", "not there"),
        (disk.local, {"kind": "file"}, "fail", "is a file"),
        (disk.local, READ_ONLY, "fail", "read-only"),
        (disk.local, DENIED, "fail", "Permission denied"),
        (disk.local, DENIED | {"mount": mount(options="ro")}, "fail", "read-only"),
        (disk.local, NO_ROOM, "pass", "writable"),
        (disk.kind, {}, "pass", "ext4"),
        (disk.kind, {"mount": mount("nfs4")}, "fail", "nfs4"),
        (disk.kind, {"mount": mount("fuse.glusterfs")}, "fail", "fuse.glusterfs"),
        (disk.kind, {"mount": mount("tmpfs")}, "warning", "tmpfs"),
        (disk.kind, {"kind": None, "mount": None}, "skipped", "no such directory"),
        (disk.space, {}, "pass", "50 % of 1,000 GB"),
        (disk.space, {"free": 4.9e10}, "fail", "5 % of 1,000 GB"),
        (disk.space, {"free": 5.1e10}, "pass", "5 %"),
        (disk.space, {"inodes_free": 10}, "fail", "10 of 1,000,000 inodes"),
        (disk.space, {"inodes": 0, "inodes_free": 0}, "pass", "50 %"),
        (shared.mounted, {}, "pass", "ext4 at /local"),
        (shared.mounted, {"mount": mount(point="/")}, "fail", "root file system"),
        (shared.mounted, {"kind": None, "mount": None}, "fail", "not there"),
        (shared.mounted, READ_ONLY, "fail", "read-only"),
        (shared.options, {"mount": mount("lustre"), "stripe_count": 1}, "warning", "stripe count 1"),
        (shared.options, {"mount": mount("lustre"), "stripe_count": -1}, "pass", "stripe count all"),
        (shared.options, {"mount": mount("lustre")}, "skipped", "not known"),
        (shared.options, {"mount": mount("gpfs")}, "pass", "gpfs"),
        (shared.options, {"mount": mount("nfs4", "rw,vers=4.2,soft,nconnect=8")}, "fail", "soft"),
        (shared.options, {"mount": mount("nfs4", "rw,vers=4.2,hard,nconnect=8")}, "warning", "NFS 4.2"),
        (shared.options, {"mount": mount("nfs4", "rw,vers=4.2,hard")}, "warning", "one connection"),
        (shared.options, {"mount": mount("nfs", "rw,vers=3,hard,nconnect=8,actimeo=0")}, "warning", "attribute cache"),
        (shared.options, {"mount": mount("nfs", "rw,vers=3,nconnect=x")}, "warning", "NFS 3"),
    ],
)
def test_a_directory_is_judged(judge: Any, changes: dict[str, Any], status: str, said: str) -> None:
    outcome = judge(place(**changes), CONTEXT)
    assert outcome.status.value == status, outcome
    assert said in outcome.value
    assert bool(outcome.mend) or status in ("pass", "skipped")


def test_checkpoints_need_their_planned_room() -> None:
    context = Context(ClusterConfig(checkpoint_path="/local", planned_checkpoint_gb=600), Thresholds())
    assert checkpoints.space(place(), context).status == "fail"
    assert checkpoints.space(place(free=6.1e11), context).status == "pass"
    assert checkpoints.space(place(), CONTEXT).status == "skipped"
    assert checkpoints.write(place(**READ_ONLY), context).status == "fail"
    assert checkpoints.write(place(), context).status == "pass"


def test_what_is_written_to_find_out_is_removed(tmp_path: Path) -> None:
    given = settings(local_path=tmp_path, shared_path=tmp_path, checkpoint_path=tmp_path)
    for probe in (disk_probe, shared_probe, checkpoints_probe):
        assert probe.gather(given)["writable"] is True
    assert list(tmp_path.iterdir()) == []
    gone = settings(local_path=tmp_path / "gone", shared_path=tmp_path / "gone")
    assert disk.local(Facts(disk_probe.gather(gone)), CONTEXT).status == "fail"
    assert shared.mounted(Facts(shared_probe.gather(gone)), CONTEXT).status == "fail"


def test_the_smaller_disk_is_named() -> None:
    nodes = {"a": place(), "b": place(), "c": place(total=5e11), "d": place(path=None), "e": Facts({})}
    found = {host: outcome.status.value for host, outcome in disk.size(nodes, CONTEXT).items()}
    assert found == {"a": "pass", "b": "pass", "c": "warning", "d": "skipped", "e": "fail"}


# As nvme-cli 1.16, nvme-cli 2.4 and smartctl 7.3 write it, shortened.
NVME_1 = {"critical_warning": 0, "temperature": 311, "avail_spare": 100, "spare_thresh": 10, "percent_used": 3,
          "media_errors": 0}  # fmt: skip
NVME_2 = {"critical_warning": {"value": 4}, "avail_spare": 100, "percent_used": 3, "media_errors": 0}
SMARTCTL = {"critical_warning": 0, "available_spare": 100, "percentage_used": 91, "media_errors": 0}


@pytest.mark.parametrize(
    ("log", "tool", "state", "status", "said"),
    [
        (NVME_1, "nvme", "live", "pass", "3 %"),
        (NVME_1 | {"critical_warning": 1}, "nvme", "live", "fail", "spare blocks"),
        (NVME_1 | {"media_errors": 7}, "nvme", "live", "warning", "7 media errors"),
        (NVME_2, "nvme", "live", "fail", "no longer reliable"),
        (SMARTCTL, "smartctl", "live", "warning", "91 %"),
        ({}, "nvme", "live", "skipped", "says nothing"),
        (NVME_1, None, "live", "skipped", "wear is not known"),
        (NVME_1, "nvme", "dead", "fail", "is dead"),
    ],
)
def test_the_health_of_a_disk_is_read(log: dict[str, Any], tool: str, state: str, status: str, said: str) -> None:
    found = {"name": "nvme0", "state": state, "error": None, **nvme_probe.of_log(log)}
    outcome = nvme.health(Facts({"tool": tool, "disks": [found]}), CONTEXT)
    assert (outcome.status.value, said in outcome.value) == (status, True), outcome


def test_smart_logs_of_both_programs_are_read(tmp_path: Path) -> None:
    for name, said in (("nvme", NVME_1), ("smartctl", {"nvme_smart_health_information_log": SMARTCTL})):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(said)}\nEND\n")
        program.chmod(0o755)
    assert nvme_probe.smart_log("/dev/nvme0", str(tmp_path / "nvme")) == NVME_1
    assert nvme_probe.smart_log("/dev/nvme0", str(tmp_path / "smartctl")) == SMARTCTL
    (tmp_path / "nvme").write_text("#!/bin/sh\necho 'open: Permission denied' >&2\nexit 1\n")
    with pytest.raises(ValueError, match="Permission denied"):
        nvme_probe.smart_log("/dev/nvme0", str(tmp_path / "nvme"))


def speed_facts(**changes: Any) -> Facts:
    found: dict[str, Any] = {"path": "/local", "has_fio": True, "error": None, "source": "/dev/nvme0n1"}
    return Facts(found | {"read": 3e9, "write": 2e9, "iops": 200_000} | changes)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({}, "pass", "reads 3.00 GB/s"),
        ({"read": 1.9e9}, "fail", "reads 1.90 GB/s"),
        ({"write": 0.9e9}, "fail", "writes 0.90 GB/s"),
        ({"iops": 100.0}, "fail", "100 reads of 4 KiB/s"),
        ({"has_fio": False}, "skipped", "fio is not installed"),
        ({"error": "no room"}, "skipped", "no room"),
        ({"source": "/dev/sda1"}, "skipped", "no limit is known for sda1"),
        ({"read": None}, "skipped", "no such directory"),
    ],
)
def test_the_speed_of_a_disk_is_held_against_its_kind(changes: dict[str, Any], status: str, said: str) -> None:
    outcome = disk_speed.speed(speed_facts(**changes), CONTEXT)
    assert (outcome.status.value, said in outcome.value) == (status, True), outcome


def test_the_output_of_fio_is_read() -> None:
    # fio 3.33, shortened; notes come before the JSON.
    text = 'fio: note\n{"jobs": [{"error": 0, "read": {"bw_bytes": 1371, "iops": 33500.5}, "write": {"bw_bytes": 0}}]}'
    assert disk_speed_probe.rate(disk_speed_probe.parse(text), "read", "iops") == 33500.5
    with pytest.raises(ValueError, match="No space left"):
        disk_speed_probe.rate({"jobs": [{"error": 28}]}, "read", "iops")
    with pytest.raises(ValueError, match="bad option"):
        disk_speed_probe.parse("", "fio: bad option")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("stripe_count:  4 stripe_size:   1048576 pattern: 0 stripe_offset: -1\n", 4),
        ("(Default) /lustre\nlcm_layout_gen: 0\n  lmm_stripe_count:  1\n  lmm_stripe_count:  -1\n", -1),
        ("error: not a Lustre file system", None),
        (None, None),
    ],
)
def test_stripes_are_read(text: str | None, count: int | None) -> None:
    assert shared_probe.stripe_count(text) == count


def write_data(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "train.bin").write_bytes(bytes(range(256)) * 2000)
    (directory / "sub/train.idx").write_bytes(b"index")
    return directory


def survey(directory: Path, probe: Any = data_probe) -> Facts:
    """As if the directory were the same path on every node."""
    found = probe.gather(settings(data_paths=[directory]))
    found["paths"][0]["path"] = "/data"
    return Facts(found)


def test_data_that_differ_are_named(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "abcdef"}
    (nodes["b"] / "sub/train.idx").unlink()
    with (nodes["c"] / "train.bin").open("r+b") as file:
        file.seek(256_000)
        file.write(b"other")
    (nodes["d"] / "more.bin").write_bytes(b"more")
    outcomes = data.equal({name: survey(directory) for name, directory in nodes.items()}, CONTEXT)
    said = {name: (outcome.status.value, outcome.value) for name, outcome in outcomes.items()}
    assert said["a"] == ("pass", "names, sizes and blocks of 2 files")
    assert said["b"] == ("fail", "/data/sub/train.idx is missing")
    assert said["c"] == ("fail", "/data/train.bin differs")
    assert said["d"] == ("fail", "/data/more.bin is on few nodes only")
    assert said["e"] == said["f"] == said["a"]


def test_a_byte_between_the_samples_is_found_by_reading_all(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "abc"}
    with (nodes["b"] / "train.bin").open("r+b") as file:
        file.seek(100_000)  # the samples end at 65,536 and begin again at 223,232
        file.write(b"other")
    sampled = data.equal({name: survey(directory) for name, directory in nodes.items()}, CONTEXT)
    assert {outcome.status.value for outcome in sampled.values()} == {"pass"}
    whole = data.whole({name: survey(directory, data_whole) for name, directory in nodes.items()}, CONTEXT)
    assert {name: outcome.status.value for name, outcome in whole.items()} == {"a": "pass", "b": "fail", "c": "pass"}


def test_of_two_that_differ_nobody_is_right(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "ab"}
    (nodes["b"] / "train.bin").write_bytes(b"other")
    outcomes = data.equal({name: survey(directory) for name, directory in nodes.items()}, CONTEXT)
    assert {outcome.value for outcome in outcomes.values()} == {"/data/train.bin differs"}


def test_missing_data_are_one_checks_matter(tmp_path: Path) -> None:
    nodes = {name: write_data(tmp_path / name) for name in "ab"} | {"c": tmp_path / "gone"}
    there = {name: data.there(survey(directory, data_there), CONTEXT) for name, directory in nodes.items()}
    assert {name: outcome.status.value for name, outcome in there.items()} == {"a": "pass", "b": "pass", "c": "fail"}
    equal = data.equal({name: survey(directory) for name, directory in nodes.items()}, CONTEXT)
    assert {name: outcome.status.value for name, outcome in equal.items()} == {"a": "pass", "b": "pass", "c": "skipped"}
    none = Facts({"paths": []})
    assert data.there(none, CONTEXT).status == data.equal({"a": none, "b": none}, CONTEXT)["a"].status == "skipped"


def test_a_prefix_means_its_shards(tmp_path: Path) -> None:
    (tmp_path / "train.bin").touch()
    (tmp_path / "train.idx").touch()
    assert [name for name, _ in data_probe.list_files(str(tmp_path / "train"))] == ["train.bin", "train.idx"]
