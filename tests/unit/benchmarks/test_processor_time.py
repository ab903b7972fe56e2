"""The processor time of a test run holds that of processes which outlive the one that started them."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
BUSY_S = 0.5


def test_what_is_left_behind_is_waited_for_and_counted() -> None:
    """In a process of its own, which takes orphans over from then on."""
    busy = f"import time\nwhile time.process_time() < {BUSY_S}: pass"
    leaving = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}]); sys.exit(3)"
    code = (
        "import sys, test_suite\n"
        f"status = test_suite.run_with_orphans([sys.executable, '-c', {leaving!r}])\n"
        "print(status, 60 * test_suite.processor_minutes())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, timeout=240)
    status, seconds = done.stdout.split()
    assert int(status) == 3, done.stderr
    assert float(seconds) > BUSY_S
