"""Part `tests`: every test that can run on a GPU, each one a figure, so that a run that is cut tells what has passed.

They are the test files that ask `tests/helpers` for their device, those of `tests/gpu` first: Triton kernels run
compiled where there is a GPU, and under Triton's interpreter where there is none. In a dry run, one file on the CPU.
"""

import importlib.util
import re
import time
from pathlib import Path

import pytest
import torch

from gpu.bench import Bench
from gpu.keep import ROOT
from gpu.results import LostContextError, not_installed

DRY = ROOT / "tests" / "gpu" / "test_cross_entropy.py"
_ASKS_FOR_DEVICE = re.compile(r"^from helpers\.(devices|triton_device) import", re.MULTILINE)


def test_files() -> list[Path]:
    """Those that run on a GPU where there is one."""
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if _ASKS_FOR_DEVICE.search(file.read_text("utf-8"))]
    return sorted(files, key=lambda file: (file.parent.name != "gpu", file))


def run(bench: Bench) -> None:
    for name in ("pydantic", "transformers", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            bench.results.set("all tests", status="missing", reason=not_installed(name))
            return
    recorder = _Recorder(bench)
    paths = [DRY] if bench.dry else test_files()
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout-method=thread", "--tb=short"]
    if importlib.util.find_spec("pytest_timeout") is None:
        options.remove("--timeout-method=thread")
    pytest.main([*options, f"--rootdir={ROOT}", *map(str, paths)], plugins=[recorder])
    if recorder.lost_context:
        raise LostContextError(recorder.lost_context)


class _Recorder:
    """Writes what became of each test as soon as it is known; leaves out those that are known already."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.results = bench, bench.results
        self.lost_context = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _name(item.nodeid) not in self.results.figures]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.results.set(_name(report.nodeid), status="failed", reason=_last_line(report.longreprtext))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not self.bench.dry and self.bench.left_s < 10:
            self.results.set(_name(item.nodeid), status="dropped", reason="no time left")
            return True
        self.results.set(_name(item.nodeid), status="running", started=round(time.time(), 1))
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _name(report.nodeid)
        if report.skipped:
            self.results.set(name, status="skipped", summary=str(report.longrepr[-1]) if report.longrepr else "")
        elif report.failed:
            text = report.longreprtext
            self.results.set(name, status="failed", reason=_last_line(text), traceback=text[-4000:])
        elif report.when == "call":
            self.results.set(name, status="ok", seconds=round(report.duration, 4))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self.results.figures[_name(nodeid)]["status"] == "failed" and torch.cuda.is_initialized():
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                self.lost_context = str(error).splitlines()[0]
                pytest.exit("the CUDA context is lost")


def _name(nodeid: str) -> str:
    """Without the folders above `tests`."""
    return nodeid[nodeid.find("tests/") :] if "tests/" in nodeid else str(Path(nodeid))


def _last_line(text: str) -> str:
    """The line that says what was wrong."""
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0].removeprefix("E").strip()[:400]
