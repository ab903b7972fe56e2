"""Threads that wait, and how many cores there are."""

import os
import subprocess
import sys

import pytest

from glmforge.runtime.cores import SPIN_COUNT, WAIT_SETTINGS, limit_spinning, usable_cores, warn_if_crowded


def test_spinning_is_limited():
    environment: dict[str, str] = {}
    assert limit_spinning(environment)
    assert environment["GOMP_SPINCOUNT"] == SPIN_COUNT


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_what_the_user_has_set_stays(name):
    environment = {name: "user's"}
    assert not limit_spinning(environment)
    assert environment == {name: "user's"}


def test_the_command_line_limits_it_before_torch_is_there():
    code = """
import os, sys
import glmforge.cli.app
class Probe:
    def find_spec(self, name, *rest):
        if name == "torch":
            print("at the import of torch:", os.environ.get("GOMP_SPINCOUNT"))
            sys.exit(0)
sys.meta_path.insert(0, Probe())
sys.argv = ["glmforge", "train", "demo"]
assert "torch" not in sys.modules
glmforge.cli.app.main()
"""
    environment = {k: v for k, v in os.environ.items() if k not in WAIT_SETTINGS}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert f"at the import of torch: {SPIN_COUNT}" in answer.stdout, answer


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_a_containers_quota_counts(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == min(cores, usable_cores(tmp_path / "without"))


@pytest.mark.parametrize(
    ("threads", "cores", "busy", "expected"),
    [
        (4, 2, 0.1, "OMP_NUM_THREADS=2"),
        (2, 0.5, 0.1, "OMP_NUM_THREADS=1"),
        (2, 2, 9.0, "9.0 of 2 cores"),
        (2, 2, 1.0, None),
        (1, 2, 9.0, None),
    ],
)
def test_crowded_cores_are_named(caplog, threads, cores, busy, expected):
    assert warn_if_crowded(threads, cores, busy) == (expected is not None)
    assert (expected or "") in caplog.text
    assert bool(caplog.text) == (expected is not None)
