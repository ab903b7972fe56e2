"""Programs that are forked: what they take over, how they end, and what ends with them."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.prepared import programs
from helpers.ranks import is_running, until
from helpers.unwoken import LIMIT_S

_SAYS_ALL = """
import os, sys
import shown  # beside the script
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], sys.stdin.read(), "torch" in sys.modules, __name__)
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
_WAITS = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, f"told {number}{os.linesep}".encode())  # print may be just at work, and cannot be called again
    sys.exit(7)
signal.signal(signal.SIGUSR1, told)
print(os.getpid(), flush=True)
while True:
    time.sleep(100)
"""


@pytest.fixture(autouse=True)
def no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shown.py").touch()
    for name, text in (("all", _SAYS_ALL), ("waits", _WAITS)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def started(*command: object) -> "subprocess.Popen[str]":
    words = [str(programs() / str(command[0])), *map(str, command[1:])]
    environment = os.environ | {"WORD": "a word"}
    return subprocess.Popen(
        words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_a_fork_takes_over_what_a_process_is_given(directory: Path) -> None:
    options: Any = {"cwd": directory, "env": os.environ | {"WORD": "a word"}, "input": "read", "text": True}
    command = [programs() / "python", "all.py", "3", "é"]
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert (done.returncode, done.stderr) == (3, "to stderr\n")
    assert done.stdout == f"['3', 'é'] {directory} a word read True __main__\n"


def test_with_options_or_a_path_of_its_own_it_is_the_real_one(directory: Path) -> None:
    python = programs() / "python"
    options: Any = {"cwd": directory, "capture_output": True, "text": True, "check": True}
    done = subprocess.run([python, "-c", "import sys; print('torch' in sys.modules)"], **options)
    assert done.stdout == "False\n"
    environment = os.environ | {"WORD": "", "PYTHONPATH": str(directory)}
    done = subprocess.run([python, "all.py", "0"], env=environment, stdin=subprocess.DEVNULL, **options)
    assert "False __main__" in done.stdout


def test_a_signal_is_passed_on(directory: Path) -> None:
    with started("python", directory / "waits.py") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGUSR1)
        assert process.communicate()[0] == f"told {int(signal.SIGUSR1)}\n"
        assert process.returncode == 7


def test_a_program_that_is_killed_has_no_fork_when_the_next_begins(directory: Path) -> None:
    with started("python", directory / "waits.py") as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        process.kill()
        process.wait()
        with started("python", directory / "waits.py") as next_one:
            assert next_one.stdout is not None
            next_one.stdout.readline()
            assert not is_running(fork)
            next_one.terminate()


def test_a_program_that_is_killed_at_any_moment_hinders_no_other(directory: Path) -> None:
    """As soon as it is there, with half of an order, and before it has heard how its fork ended."""
    order = json.dumps([["all.py", "0"], str(directory), os.environ | {"WORD": ""}, []]).encode()
    with Path(os.devnull).open() as null:
        for sent in (b"", order[:-1], order, order):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as program:
                program.connect(str(programs() / "starter"))
                if sent:
                    socket.send_fds(program, [sent], [null.fileno()] * 3)
    with started("python", directory / "all.py", 0) as process:
        process.communicate()
        assert process.returncode == 0


_TEST_RUN = (
    "import os, subprocess, sys\n"
    f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    "from helpers import distributed\n"
    "from helpers.prepared import programs\n"
    "distributed._PRELOADED = []\n"  # seconds that are not needed here
)
"""A test run of its own begins so."""


@pytest.mark.parametrize("run_ignores", [False, True])
@pytest.mark.parametrize("program_ignores", [False, True])
def test_a_fork_ignores_what_its_program_does_and_not_what_the_test_run_does(
    directory: Path, run_ignores: bool, program_ignores: bool
) -> None:
    """A shell starts what runs in the background with Ctrl-C ignored, a whole test run, too."""

    def ignoring_interrupts(ignores: bool) -> str:
        return f"--{'ignore' if ignores else 'default'}-signal=INT"

    (directory / "shows.py").write_text("import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)")
    (directory / "run.py").write_text(
        _TEST_RUN + "if __name__ == '__main__':\n"
        f"    words = ['env', '{ignoring_interrupts(program_ignores)}', programs() / 'python', sys.argv[1]]\n"
        "    subprocess.run(words, check=True)\n"
    )
    command = ["env", ignoring_interrupts(run_ignores), sys.executable, directory / "run.py", directory / "shows.py"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said == f"{program_ignores}\n"


def test_a_signal_that_does_not_wake_a_program_is_passed_on(directory: Path) -> None:
    """As one that comes just before it waits: forced with a thread of the program's own, once its fork is ready."""
    text = (programs() / "python").read_text()
    before, wait, after = text.partition("    while starter not in ")
    assert wait
    strike = (
        "    import threading\n"
        f"    sys.path.append({str(Path(__file__).parents[2])!r})\n"
        "    from helpers.unwoken import signal_without_waking\n"
        "    sys.stdin.readline()\n"
        "    threading.Thread(target=signal_without_waking, args=(signal.SIGUSR1,)).start()\n"
    )
    program = directory / "python"
    program.write_text(before + strike + wait + after)
    program.chmod(0o755)
    words = [str(program), str(directory / "waits.py")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        said, _ = process.communicate("the fork is ready\n", timeout=LIMIT_S)
    assert (process.returncode, said) == (7, f"told {int(signal.SIGUSR1)}\n")


def test_nothing_outlives_the_test_run(directory: Path) -> None:
    program = (
        _TEST_RUN + "if __name__ == '__main__':\n"
        "    process = subprocess.Popen([programs() / 'python', sys.argv[1]], stdout=subprocess.PIPE, text=True)\n"
        "    print(process.pid, process.stdout.readline(), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    (directory / "run.py").write_text(program)
    command = [sys.executable, directory / "run.py", directory / "waits.py"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    pids = [int(word) for word in said.split()]
    assert len(pids) == 2
    until(lambda: not any(map(is_running, pids)), "the end of what was started")
