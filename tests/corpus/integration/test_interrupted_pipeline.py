"""Ctrl-C while tasks run that would never end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.corpus import texts_of
from helpers.corpus_runs import TIME_LIMIT_S

TESTS = Path(__file__).parents[2]
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
from glmforge_corpus.pipeline import registry
registry.STAGES["stuck"] = "helpers.corpus:Stuck"
from glmforge.cli.app import main
main()
"""


def _start(file: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "data", "run", str(file)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    )


def _read_until_stuck(process: "subprocess.Popen[str]", tasks: int) -> list[str]:
    said = []
    for line in process.stderr:
        said += [line.strip()] if line.startswith("never ends") else []
        if len(said) == tasks:
            break
    return said


@pytest.mark.parametrize(("workers", "said"), [(1, ["never ends"]), (2, ["never ends, deaf"] * 2)])
def test_interrupted_it_stops_at_once_and_goes_on_later(tmp_path, workers, said):
    gate, out, file = tmp_path / "gate", tmp_path / "out", tmp_path / "pipeline.yaml"
    gate.touch()
    file.write_text(
        f"output: {out}\nstages:\n  - stuck: {{stuck_while: {gate}}}\nexecutors: {{local: {{workers: {workers}}}}}\n"
    )
    process = _start(file)
    try:
        assert _read_until_stuck(process, workers) == said, "a worker is born deaf to Ctrl-C"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        printed, errors = process.communicate(timeout=TIME_LIMIT_S)  # workers have stderr, too: ends with the last one
    finally:
        process.kill()  # and the workers end with it
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "glmforge: interrupted: run it again to resume"
    assert "Traceback" not in errors
    assert printed == ""
    root = out / ".work" / "00-stuck" / "documents"
    assert [path.name for path in root.iterdir() if ".partial." not in path.name] == ["00000"]
    first = (root / "00000").stat().st_ino
    gate.unlink()
    printed, errors = _start(file).communicate(timeout=TIME_LIMIT_S)
    assert "stuck: 40 documents" in printed, errors
    assert (root / "00000").stat().st_ino == first
    assert len(texts_of(sorted((out / "documents").iterdir()))) == 40
