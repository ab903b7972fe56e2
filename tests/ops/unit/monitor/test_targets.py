"""Which targets Prometheus is given, from good files, stale ones and hostile ones."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glmforge.cli.app import app
from glmforge_ops.monitor.targets import file_sd, targets_of_runs, targets_of_slurm

GOOD = {"host": "node1", "port": 9000, "pid": 1, "run": "a run", "stage": "sft", "started": "2026-01-01T00:00:00+00:00"}


def put(runs: Path, place: str, number: int = 0, **changes: Any) -> Path:
    path = runs / place / "exporter" / f"rank-{number:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(GOOD | changes))
    return path


def discovered(*directories: Path) -> list[dict[str, Any]]:
    found, problems = targets_of_runs(directories)
    assert not problems
    groups: list[dict[str, Any]] = json.loads(file_sd(found))
    return groups


def test_each_process_is_a_target_with_the_labels_of_its_run(tmp_path: Path) -> None:
    put(tmp_path, "a", 0)
    put(tmp_path, "a", 12, port=9012, host="::1")
    put(tmp_path, "corpus", job="corpus", run="text", stage="corpus", port=9013)
    common = {"job": "glmforge", "run": "a run", "stage": "sft"}
    groups = discovered(tmp_path)
    assert groups == [
        {"targets": ["node1:9013"], "labels": {"job": "corpus", "run": "text", "rank": "0"}},
        {"targets": ["node1:9000"], "labels": common | {"rank": "0"}},
        {"targets": ["[::1]:9012"], "labels": common | {"rank": "12"}},
    ]
    assert discovered(tmp_path / "a", tmp_path / "corpus") == groups


def test_an_address_belongs_to_the_run_that_got_it_last(tmp_path: Path) -> None:
    put(tmp_path, "a_dead", run="dead", started="2026-01-01T00:00:00+00:00")
    put(tmp_path, "b_alive", run="alive", started="2026-01-02T00:00:00+00:00")
    put(tmp_path, "c_dead", run="dead too", started="2025-12-31T00:00:00+00:00")
    assert [group["labels"]["run"] for group in discovered(tmp_path)] == ["alive"]


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "node1/../../x"},
        {"host": "evil\nhost"},
        {"host": None},
        {"port": 0},
        {"port": True},
        {"port": "9000"},
        {"port": 65_536},
        {"run": "x" * 201},
        {"run": ["x"]},
        {"stage": {}},
        {"started": 5},
        {"job": "node"},
        {"job": ["glmforge"]},
    ],
)
def test_a_file_that_no_exporter_wrote_is_skipped(tmp_path: Path, changes: dict[str, Any]) -> None:
    put(tmp_path, "bad", **changes)
    put(tmp_path, "good")
    found, problems = targets_of_runs([tmp_path])
    assert [target.address for target in found] == ["node1:9000"]
    [problem] = problems
    assert f"bad/exporter/rank-00000.json: invalid {next(iter(changes))}" in problem
    assert "\n" not in problem


@pytest.mark.parametrize("text", ["", "[]", '{"host": ', "\xff", '{"port": 1e999}', "[" * 10_000, " " * (1 << 17)])
def test_a_file_that_is_no_json_is_skipped(tmp_path: Path, text: str) -> None:
    put(tmp_path, "bad").write_bytes(text.encode("latin-1"))
    found, problems = targets_of_runs([tmp_path])
    assert (found, len(problems)) == ([], 1)


def test_what_is_no_file_is_skipped(tmp_path: Path) -> None:
    put(tmp_path, "pipe").unlink()
    os.mkfifo(tmp_path / "pipe" / "exporter" / "rank-00000.json")
    (tmp_path / "pipe" / "exporter" / "rank-00001.json").mkdir()
    found, problems = targets_of_runs([tmp_path])
    assert (found, len(problems)) == ([], 2)


def test_control_characters_of_a_run_are_escaped(tmp_path: Path) -> None:
    put(tmp_path, "a", run="a\nb")
    assert [group["labels"]["run"] for group in discovered(tmp_path)] == ["a\\nb"]


def test_nodes_of_running_slurm_jobs_have_two_exporters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(
        '#!/bin/sh\ncase "$*" in *--me*--states=RUNNING*) printf "node[2-3],gpu1\\nnode3\\n\\n";; *) exit 1;; esac\n'
    )
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    groups = json.loads(file_sd(targets_of_slurm(gpu_port=9401)))
    assert groups == [
        {"targets": ["gpu1:9100", "node2:9100", "node3:9100"], "labels": {"job": "node"}},
        {"targets": ["gpu1:9401", "node2:9401", "node3:9401"], "labels": {"job": "gpu"}},
    ]
    squeue.write_text("#!/bin/sh\n")
    assert targets_of_slurm() == []


def test_the_command_writes_the_file_and_says_what_it_skipped(tmp_path: Path) -> None:
    put(tmp_path, "good")
    put(tmp_path, "bad", port=-1)
    output = tmp_path / "targets.json"
    done = CliRunner().invoke(app, ["monitor", "targets", str(tmp_path), "--output", str(output)])
    assert done.exit_code == 0
    assert f"{output}: 1 targets" in done.output
    assert "invalid port" in done.output
    assert json.loads(output.read_text())[0]["targets"] == ["node1:9000"]
    written = output.stat().st_mtime_ns
    assert CliRunner().invoke(app, ["monitor", "targets", str(tmp_path), "--output", str(output)]).exit_code == 0
    assert output.stat().st_mtime_ns == written  # Prometheus reads it again only if it is new


def test_a_wrong_directory_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["monitor", "targets", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert str(done.exception) == f"{tmp_path / 'none'}: no such directory; name runs, or a directory that holds runs"
