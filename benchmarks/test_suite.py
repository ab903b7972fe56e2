"""How long the tests take, and where the time goes.

    python benchmarks/test_suite.py                 # what `make test` runs; writes benchmarks/results/test_suite.json

Seconds of tests run side by side are added up, so that the groups together make more than the wall time. A group is a
folder two levels below `tests`.
"""

import argparse
import collections
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from record import ROOT, write_result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            str(args.processes),
            "--dist",
            "worksteal",
            "--durations",
            "15",
            f"--junitxml={report}",
        ]
        started = time.monotonic()
        failed = subprocess.run(command, cwd=ROOT).returncode
        minutes = (time.monotonic() - started) / 60
        result = {"minutes": round(minutes, 1), "processes": args.processes} | summarise(report)
    if not failed:
        write_result("test_suite", result, code=["tests", "src"], out=args.out)
    return failed


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
