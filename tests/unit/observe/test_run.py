import json
from pathlib import Path

import pytest

from glmforge.observe.record_files import RunFileError, read_jsonl
from glmforge.observe.run import RunDirectory, read_run, record_event, record_start
from helpers.synthetic_run import write_synthetic_run


def test_the_first_start_writes_run_json(tmp_path: Path) -> None:
    record_start(tmp_path / "run", name="demo", step=0)
    directory = RunDirectory(tmp_path / "run")
    info = json.loads(directory.info.read_text())
    assert info["name"] == "demo"
    assert set(info) == {"name", "started", "git_revision", "versions", "machine"}
    (event,) = read_jsonl(directory.events)
    assert (event["event"], event["step"]) == ("started", 0)
    assert event["time"].endswith("Z")


def test_a_later_start_keeps_it_and_tells_what_changed(tmp_path: Path) -> None:
    record_start(tmp_path, name="demo", step=0)
    record_start(tmp_path, name="demo", step=7)
    info_path = RunDirectory(tmp_path).info
    info = json.loads(info_path.read_text())
    info["versions"]["torch"] = "1.0"
    info["machine"]["cores"] = 999
    info_path.write_text(json.dumps(info))
    record_start(tmp_path, name="demo", step=9)
    assert json.loads(info_path.read_text()) == info
    same, changed = read_jsonl(RunDirectory(tmp_path).events)[1:]
    assert (same["event"], same["step"], same["detail"]) == ("resumed", 7, "same code, libraries and machine")
    assert changed["step"] == 9
    assert "torch 1.0 -> 2." in changed["detail"]
    assert "cores 999 -> " in changed["detail"]


@pytest.mark.parametrize(
    "damaged", [b"", b"\0" * 300, b"[]", b'{"name": ', b"\xff\xfe", b'{"versions": 3}', b"[" * 100_000]
)
def test_a_damaged_run_json_is_kept_aside_and_written_anew(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for number in ("", "1"):  # twice: the first damaged one stays
        info = RunDirectory(tmp_path).info
        info.write_bytes(damaged)
        record_start(tmp_path, name="demo", step=7)
        assert json.loads(info.read_text())["name"] == "demo"
        aside = tmp_path / f"run.json.damaged{number}"
        assert aside.read_bytes() == damaged
        event = read_jsonl(RunDirectory(tmp_path).events)[-1]
        assert (event["event"], event["step"]) == ("resumed", 7)
        assert event["detail"] == f"run.json was damaged and is rewritten; the damaged file is kept as {aside.name}"
        assert str(aside) in caplog.text


def test_read_run_gives_everything(tmp_path: Path) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=12, killed_at=None)
    record_event(root, "killed", step=5, detail="SIGKILL")
    run = read_run(root)
    assert run.info["name"] == "synthetic"
    assert run.config["model"]["hidden_size"] == 256
    assert [record["step"] for record in run.metrics] == list(range(1, 13))
    assert run.evaluations
    assert run.events[-1]["detail"] == "SIGKILL"


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "metrics.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=2)
    (root / name).unlink()
    with pytest.raises(RunFileError, match=rf"run/{name}: no such file"):
        read_run(root)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.yaml", "a: [1", "is not YAML"),
        ("config.yaml", "- 1", "is not a mapping"),
        ("run.json", "{", "is not JSON"),
        ("metrics.jsonl", "", "no steps recorded yet; train at least one"),
        ("metrics.jsonl", '{"step": 1', "no steps recorded yet; train at least one"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    root = write_synthetic_run(tmp_path / "run", num_steps=2)
    (root / name).write_text(content)
    with pytest.raises(RunFileError, match=rf"run/{name}: {message}"):
        read_run(root)
