"""How long the tests take, and where the time goes.

    python benchmarks/test_suite.py                 # what CI runs; writes benchmarks/results/test_suite.json
    python benchmarks/test_suite.py --suite test    # one of them: test, integration, ops, corpus; writes nothing

Seconds of tests run side by side are added up, so that the groups together make more than the wall time. A group is a
folder two levels below `tests`. Processor minutes are those of all processes together, of tests and of what they start:
on a machine that does other things, too, they say more than the minutes that passed.
"""

import collections
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from harness import arguments
from record import ROOT, write_result

SUITES = {
    "test": ["tests", *(f"--ignore=tests/{folder}" for folder in ("integration", "ops", "corpus", "backends"))],
    "integration": ["tests/integration"],
    "ops": ["tests/ops"],
    "corpus": ["tests/corpus"],
}
"""What `make test`, `make test-integration`, `make test-ops` and `make test-corpus` run."""


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--suite", choices=SUITES)
    args = parser.parse_args()
    result: dict[str, Any] = {"processes": args.processes}
    failed = 0
    for suite in [args.suite] if args.suite else SUITES:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-n", str(args.processes), "--dist", "worksteal"]
            command += ["--durations", "15", f"--junitxml={report}", *SUITES[suite]]
            started, before = time.monotonic(), processor_minutes()
            failed |= run_with_orphans(command)
            minutes = {"minutes": (time.monotonic() - started) / 60, "processor_minutes": processor_minutes() - before}
            result[suite] = {name: round(value, 1) for name, value in minutes.items()} | summarise(report)
            print(suite, result[suite]["minutes"], "minutes")
    if not failed and args.suite is None:
        write_result("test_suite", result, code=["tests", "src"], out=args.out)
    return failed


PR_SET_CHILD_SUBREAPER = 36
_WAIT_FOR_ORPHANS_S = 30.0


def run_with_orphans(command: list[str]) -> int:
    """Run `command` and take over what it leaves behind, so that this process is told of their processor time, too.

    Ranks are forked from servers that end after the test process that started them. Orphans are waited for at once:
    there are tests that look whether a process is gone. Returns the command's exit status.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    process = subprocess.Popen(command, cwd=ROOT)
    while process.returncode is None:
        ended, status = os.waitpid(-1, 0)
        if ended == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    deadline = time.monotonic() + _WAIT_FOR_ORPHANS_S
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if not ended:
            time.sleep(0.1)
    return process.returncode


def processor_minutes() -> float:
    """Of all processes that have ended below this one, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def summarise(report: Path) -> dict[str, Any]:
    """Counts of outcomes and minutes of every group from a JUnit report."""
    groups: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        groups[".".join(case.get("classname", "").split(".")[1:3])] += float(case.get("time", 0))
        outcomes["skipped" if case.find("skipped") is not None else "passed"] += 1
    minutes = {name: round(seconds / 60, 2) for name, seconds in groups.most_common()}
    return {**outcomes, "minutes_of_groups": minutes, "minutes_of_all_tests": round(sum(groups.values()) / 60, 1)}


if __name__ == "__main__":
    sys.exit(main())
