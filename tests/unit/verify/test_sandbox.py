"""Programs of a model: what the sandbox refuses them, and how it ends them."""

import os
import socket

import pytest

from glmforge.errors import GlmforgeError
from glmforge.verify import sandbox
from glmforge.verify.sandbox import OUTPUT_BYTES, run_program

needs_sandbox = pytest.mark.skipif(not sandbox._has_sandbox(), reason="bubblewrap is not here, or may not run")

NUM_FORKS = 64
# Bounded, whatever the sandbox does: only the parent forks, and a child does nothing but wait to be killed.
COUNT_CHILDREN = f"""
import os, signal
num_children = 0
for _ in range({NUM_FORKS}):
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        signal.pause()
        os._exit(0)
    num_children += 1
print(num_children, flush=True)
os._exit(0)
"""


@needs_sandbox
def test_a_program_reads_its_input_and_its_output_is_kept():
    finished = run_program("import sys\nprint('é', input())\nprint('no', file=sys.stderr)", "7\n")
    assert (finished.reason, finished.status, finished.output, finished.errors) == ("exit", 0, "é 7\n", "no\n")
    assert finished.is_ok
    assert not run_program("raise SystemExit(3)").is_ok
    assert "SyntaxError" in run_program("def").errors
    assert run_program("x = 1\n" * 100_000 + "print(x)").output == "1\n", "longer than an argument may be"


@needs_sandbox
@pytest.mark.parametrize(
    "attempt",
    [
        pytest.param("import socket; socket.create_connection(('127.0.0.1', PORT), 2)", id="network"),
        pytest.param("open(SECRET).read()", id="a file of the user"),
        pytest.param(
            "import os; [1 / 0 for name in ('/root', '/home', '/work') if not os.path.isdir(name)]", id="home"
        ),
        pytest.param("open('/usr/new', 'w')", id="write"),
        pytest.param("import os; os.kill(PID, 0)", id="another process"),
        pytest.param("import os; os.setuid(0)", id="rights"),
    ],
)
def test_refused(attempt, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        known = f"PORT, SECRET, PID = {server.getsockname()[1]}, {str(secret)!r}, {os.getpid()}\n"
        finished = run_program(known + attempt)
    assert finished.reason == "exit"
    assert finished.status == 1, finished
    assert "Error" in finished.errors


@needs_sandbox
def test_what_it_writes_is_gone_with_it():
    write = "open('/tmp/mark', 'x').write('1'); print(open('/tmp/mark').read())"
    assert run_program(write).output == run_program(write).output == "1\n"
    assert not run_program("open('/tmp/large', 'wb').write(bytes(20 << 20))").is_ok


@needs_sandbox
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import signal\nsignal.pause()",
        "import os, signal\nos.close(1)\nos.close(2)\nsignal.pause()",
    ],
    ids=["loops", "waits", "closes its descriptors"],
)
def test_ended_in_time(program):
    finished = run_program(program, timeout_s=1.0)
    assert finished.reason == "time"
    assert not finished.is_ok


@needs_sandbox
def test_a_child_ends_with_its_program():
    program = "import os, signal\nif os.fork(): print(1, flush=True); os._exit(0)\nsignal.pause()"
    finished = run_program(program, timeout_s=30.0)
    assert (finished.reason, finished.output) == ("exit", "1\n")


@needs_sandbox
def test_memory_is_limited():
    finished = run_program("bytearray(2 << 30)")
    assert not finished.is_ok
    assert "MemoryError" in finished.errors


@needs_sandbox
def test_processes_are_limited_for_root_too():
    finished = run_program(COUNT_CHILDREN)
    assert finished.is_ok, finished
    assert 0 < int(finished.output) < NUM_FORKS


@needs_sandbox
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_limited(stream):
    finished = run_program(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)")
    assert finished.reason == "output"
    assert not finished.is_ok
    assert len(finished.output) + len(finished.errors) <= 2 * OUTPUT_BYTES


def test_without_a_sandbox_nothing_runs_unless_told(monkeypatch):
    monkeypatch.setattr(sandbox, "_has_sandbox", lambda: False)
    with pytest.raises(GlmforgeError, match=r"--unsafe-code") as refusal:
        run_program("print(1)")
    assert "\n" not in str(refusal.value)
    assert run_program("print(1)", unsafe=True).output == "1\n"
