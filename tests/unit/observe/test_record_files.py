import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from glmforge.observe.record_files import JsonlFile, RunFileError, read_jsonl


def _write(path: Path, steps: range, **more: object) -> None:
    with JsonlFile(path) as file:
        for step in steps:
            file.write({"step": step, **more})


def _steps(path: Path) -> list[int]:
    return [record["step"] for record in read_jsonl(path)]


def test_records_come_back_as_written(tmp_path: Path) -> None:
    records = [{"step": 1, "loss": 0.1 + 0.2, "phase": "général"}, {"step": 2, "expert_load": [[0.5, 0.5]]}]
    with JsonlFile(tmp_path / "new" / "metrics.jsonl") as file:
        for record in records:
            file.write(record)
    assert read_jsonl(tmp_path / "new" / "metrics.jsonl") == records


def test_every_line_is_strict_json_even_for_a_diverged_run(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonlFile(path) as file:
        file.write({"step": 1, "loss": math.nan, "grad_norm": math.inf, "loss_mtp": -math.inf})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    (record,) = read_jsonl(path)
    assert math.isnan(record["loss"])
    assert (record["grad_norm"], record["loss_mtp"]) == (math.inf, -math.inf)


def test_numbers_of_layers_and_sources_may_diverge_too(tmp_path: Path) -> None:
    record = {"step": 1, "layer_grad_norms": [1.0, math.inf], "source_loss": {"web": -math.inf, "code": 2.0}}
    with JsonlFile(tmp_path / "m.jsonl") as file:
        file.write(record)
    assert 'Infinity"' in (tmp_path / "m.jsonl").read_text()
    assert read_jsonl(tmp_path / "m.jsonl") == [record]


def test_each_record_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with JsonlFile(tmp_path / "m.jsonl") as file:
        file.write({"step": 1})
        assert _steps(tmp_path / "m.jsonl") == [1]


@pytest.mark.parametrize("tail", [b'{"step": 4, "lo', b'{"step": 4, "phase": "g\xc3', b"\0\0\0\n", b"4", b"{"])
def test_a_cut_last_line_is_passed_over_and_repaired(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "m.jsonl"
    _write(path, range(1, 4))
    with path.open("ab") as file:
        file.write(tail)
    assert _steps(path) == [1, 2, 3]
    _write(path, range(4, 6))
    assert _steps(path) == [1, 2, 3, 4, 5]
    assert path.read_bytes().count(b"\n") == 5


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    _write(path, range(3, 4))
    assert _steps(path) == [1, 2, 3]


@pytest.mark.parametrize(("resume_step", "kept"), [(0, []), (2, [1, 2]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])])
def test_resume_drops_the_steps_that_are_trained_again(tmp_path: Path, resume_step: int, kept: list[int]) -> None:
    path = tmp_path / "m.jsonl"
    _write(path, range(1, 5))
    with path.open("ab") as file:
        file.write(b'{"step": 5, "lo')
    with JsonlFile(path, resume_step=resume_step) as file:
        assert _steps(path) == kept
        file.write({"step": 99})
    assert _steps(path) == [*kept, 99]


def test_a_damaged_line_in_the_middle_is_an_error_naming_it(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunFileError, match=r"m\.jsonl: line 2 is not a JSON object"):
        read_jsonl(path)
    with pytest.raises(RunFileError, match="line 2"):
        JsonlFile(path, resume_step=1)
    assert path.read_text().count("\n") == 3  # nothing was lost


def test_a_missing_file_is_an_error_naming_it(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"absent\.jsonl: no such file"):
        read_jsonl(tmp_path / "absent.jsonl")


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may pass 100 bytes: a longer write fails after a part, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_naming_the_file_and_loses_only_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with pytest.raises(
        RunFileError,
        match=r"m\.jsonl: cannot be written \(File too large\); free some space or fix "
        r"its permissions",
    ):
        _write(path, range(1, 4), text="x" * 20)  # 44 bytes a line: two fit
    assert path.stat().st_size == 88  # the part of the third line is taken back: the file can be continued
    assert _steps(path) == [1, 2]


_WRITER = """
import sys
from glmforge.observe.record_files import JsonlFile
file = JsonlFile(sys.argv[1])
step = 0
while True:
    step += 1
    file.write({"step": step, "text": "x" * 3000})
    if step == 50:
        print("running", flush=True)
"""


def test_a_killed_writer_loses_no_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    process = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # at least 50 records are written
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    survived = len(read_jsonl(path))
    assert survived >= 50
    with JsonlFile(path, resume_step=40) as file:
        file.write({"step": 41})
    assert _steps(path) == list(range(1, 42))
