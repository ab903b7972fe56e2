"""`python -m glmforge_ops.jobs.ranks` with real processes: logs, records, signals, and the end of who asked for it."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glmforge.observe.job_records import AttemptDirectory
from helpers.ranks import PATIENCE_S, assignment, attempt_in, is_running, record, run_node, start_node, texts, until


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDirectory:
    return attempt_in(tmp_path)


def shell(script: str) -> list[str]:
    return ["bash", "-c", script]


def test_numbers_log_and_record(attempt: AttemptDirectory) -> None:
    script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT $COLOUR"
    given = assignment(shell(script), ranks_per_node=2, nodes=["here", "there"], environment={"COLOUR": "blue"})
    assert run_node(attempt, given) == 0
    assert texts(attempt, 0) == ["0 0 4 2 127.0.0.1 1 blue"]
    assert texts(attempt, 1) == ["1 1 4 2 127.0.0.1 1 blue"]
    ranks = attempt.read_ranks()
    assert [(rank.rank, rank.local_rank, rank.node, rank.status) for rank in ranks] == [
        (0, 0, "here", 0),
        (1, 1, "here", 0),
    ]
    assert all(rank.ended is not None and rank.ended > rank.began for rank in ranks)


def test_the_log_names_time_rank_and_step(attempt: AttemptDirectory) -> None:
    script = 'echo before; echo 41 >"$GLMFORGE_STEP_FILE"; sleep 0; echo after 1>&2'
    assert run_node(attempt, assignment(shell(script))) == 0
    lines = [line.split(" ", 3) for line in attempt.log(0).read_text().splitlines()]
    assert [line[1] for line in lines] == ["0", "0"]
    assert lines[-1][2:] == ["41", "after"]
    assert lines[0][0].endswith("Z")
    assert record(attempt).last_step == 41


@pytest.mark.parametrize(
    ("script", "status", "own"),
    [("exit 75", 75, 75), ("kill -SEGV $$", -signal.SIGSEGV, 128 + signal.SIGSEGV), ("exit 0", 0, 0)],
)
def test_statuses(attempt: AttemptDirectory, script: str, status: int, own: int) -> None:
    assert run_node(attempt, assignment(shell(script))) == own
    assert record(attempt).status == status


def test_the_first_failure_gives_the_status(attempt: AttemptDirectory) -> None:
    """The other rank fails only once it sees that the failure of this one is written down."""
    wait = f"until grep -q '\"status\": 9' {attempt.rank(1)}; do :; done"
    assert run_node(attempt, assignment(shell(f'[ "$RANK" = 1 ] && exit 9; {wait}; exit 3'), ranks_per_node=2)) == 9
    assert [rank.status for rank in attempt.read_ranks()] == [3, 9]


@pytest.mark.parametrize(
    ("changes", "status"), [({"command": ["/no/such/program"]}, 127), ({"cwd": "/no/such/directory"}, 127)]
)
def test_what_cannot_be_started_says_so(attempt: AttemptDirectory, changes: dict[str, object], status: int) -> None:
    assert run_node(attempt, assignment(**{"command": ["true"]} | changes)) == status
    assert "/no/such" in record(attempt).last_words[-1]
    assert "/no/such" in texts(attempt)[-1]


def test_hostile_output(attempt: AttemptDirectory) -> None:
    """Bytes that are no text, terminal sequences, a line without end, progress bars: lines that are safe to print."""
    program = (
        "import os; w = lambda b: os.write(1, b); w(b'\\xff\\x00\\x1b[31mred\\x1b[0m\\x1b]0;title\\x07\\n');"
        "w(b'\\r'.join(b'%d%%' % n for n in range(101)) + b'\\n'); w(b'x' * 100_000 + b'\\n'); w(b'no end')"
    )
    assert run_node(attempt, assignment([sys.executable, "-c", program])) == 0
    first, *bar, long, last = texts(attempt)
    assert first == "\\xff\\x00red\\x1b]0;title\\x07"
    assert bar[-1] == "100%"
    assert long.startswith("x" * 1000)
    assert long.endswith(" bytes more)")
    assert last == "no end"
    assert all(text.isprintable() for text in texts(attempt))


def test_a_full_disk_ends_no_rank(attempt: AttemptDirectory, tmp_path: Path) -> None:
    """A limit on file sizes stands for the disk: the kernel refuses to write on, in the middle of a line."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = tmp_path / "done"
    given = assignment(shell(f"for n in $(seq 20); do seq 200; done; ulimit -f unlimited; mkdir {done}; exit 5"))
    assert start_node(attempt, given, preexec_fn=limit).wait(PATIENCE_S) == 5
    assert done.is_dir()
    content = attempt.log(0).read_bytes()
    assert 0 < len(content) <= 20_000
    assert content.endswith(b"\n")
    assert record(attempt).status == 5


def _waiting(extra: str = "") -> list[str]:
    """Says that it is there, and waits; a child in the same group does too."""
    return shell(f"{extra} sleep 1000 & echo child $!; echo ready $$; wait; wait")


def _started(attempt: AttemptDirectory, number: int = 2) -> list[int]:
    until(lambda: len(texts(attempt)) >= number, "the first lines")
    return [int(line.split()[1]) for line in texts(attempt) if line.startswith(("child", "ready"))]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_signals_are_passed_on(attempt: AttemptDirectory, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    node = start_node(attempt, assignment(_waiting(f"trap 'echo got {name}; exit 75' {name};")))
    pids = _started(attempt)
    node.send_signal(number)
    assert node.wait(PATIENCE_S) == 75
    assert texts(attempt)[-1] == f"got {name}"
    assert record(attempt).status == 75
    assert not any(map(is_running, pids))


def test_who_does_not_end_in_the_grace_is_killed(attempt: AttemptDirectory) -> None:
    node = start_node(attempt, assignment(_waiting("trap '' TERM;"), grace_s=0.2))
    _started(attempt)
    node.send_signal(signal.SIGTERM)
    assert node.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert record(attempt).status == -signal.SIGKILL


def test_killed_itself_the_commands_end(attempt: AttemptDirectory) -> None:
    """The kernel ends them: nobody is there to clean up."""
    node = start_node(attempt, assignment(_waiting()))
    child, command = _started(attempt)
    node.kill()
    node.wait()
    until(lambda: not is_running(command), "the command's end")
    os.kill(child, signal.SIGKILL)


def test_when_its_parent_is_killed_the_commands_end(attempt: AttemptDirectory) -> None:
    assignment(_waiting()).write(attempt.root)
    command = f"{sys.executable} -P -m glmforge_ops.jobs.ranks {attempt.root} --node 0 & wait"
    parent = subprocess.Popen(shell(command), start_new_session=True)
    pids = _started(attempt)
    parent.kill()
    parent.wait()
    until(lambda: not any(map(is_running, pids)), "the command's end")
    until(lambda: record(attempt).status is not None, "the record")
    assert record(attempt).status == -signal.SIGTERM


def test_the_control_channel(attempt: AttemptDirectory) -> None:
    """Signals come through it, and its end is the end."""
    # The child ignores the signal, which goes to the whole group: it would end, and the command with it.
    child = "trap '' USR1; sleep 1000 & trap 'echo got USR1' USR1; echo child $!"
    command = shell(f"{child}; echo ready $$; wait; wait")
    node = start_node(attempt, assignment(command), "--control", stdin=subprocess.PIPE)
    assert node.stdin is not None
    with contextlib.closing(node.stdin):
        pids = _started(attempt)
        node.stdin.write(f"signal {int(signal.SIGUSR1)}\nnonsense\n".encode())
        node.stdin.flush()
        until(lambda: "got USR1" in texts(attempt), "the signal")
        assert node.poll() is None
    node.wait(PATIENCE_S)
    assert not any(map(is_running, pids))


def test_the_step_file_goes_with_the_rank(attempt: AttemptDirectory) -> None:
    assert run_node(attempt, assignment(shell('echo "$GLMFORGE_STEP_FILE"'))) == 0
    assert not Path(texts(attempt)[0]).exists()


def test_what_is_wrong_is_told_in_one_line(attempt: AttemptDirectory) -> None:
    for arguments, words in (
        ([], "usage"),
        ([str(attempt.root), "--node", "0"], "storage that all nodes see"),
        ([str(attempt.root), "--node", "0", "--magic"], "usage"),
    ):
        command = [sys.executable, "-P", "-m", "glmforge_ops.jobs.ranks", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def slurm_that_notes(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is asked of scontrol; and a supervisor of the job with one heartbeat."""
    (root / ".supervisor").mkdir()
    (root / ".supervisor/00000001").write_text("beat 7")
    (root / "scontrol").write_text(f'#!/bin/sh\necho "$*" >>{root}/asked\n')
    (root / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    return root / "asked"


def orphaned(attempt: AttemptDirectory, monkeypatch: pytest.MonkeyPatch, command: list[str] | None = None) -> int:
    """The status of a node's program that is to believe its supervisor gone; looks are quick."""
    quick = "import glmforge_ops.jobs.ranks.__main__ as m; m.LOOK_EVERY_S, m.ORPHAN_GRACE_S = 0.2, 0.1;"
    assignment(command or _waiting("trap '' TERM;"), requeue=True).write(attempt.root)
    program = [sys.executable, "-c", f"{quick} m._leave(m.main([{str(attempt.root)!r}, '--node', '0']))"]
    return subprocess.run(program, timeout=PATIENCE_S, check=False).returncode


def test_a_supervisor_without_heartbeat_is_gone_and_slurm_is_asked_to_queue_the_job_again(
    attempt: AttemptDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was lost with it, and no pipe ends: its claim on the job's directory stays as it is."""
    asked = slurm_that_notes(tmp_path, monkeypatch)
    assert orphaned(attempt, monkeypatch) == 128 + signal.SIGKILL
    assert asked.read_text() == "requeue 17\n"


def test_ranks_that_end_before_anybody_misses_the_supervisor_ask_for_it_as_well(
    attempt: AttemptDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They notice sooner that those of the lost node are gone. A supervisor that lives is left to itself."""
    asked = slurm_that_notes(tmp_path, monkeypatch)
    assert orphaned(attempt, monkeypatch, shell("exit 3")) == 3
    assert asked.read_text() == "requeue 17\n"
    asked.unlink()
    beats = "n=0; while :; do n=$((n + 1)); echo $n >.new; mv .new 00000001; sleep 0.01; done"
    with subprocess.Popen(shell(beats), cwd=tmp_path / ".supervisor") as supervisor:
        assert orphaned(attempt, monkeypatch, shell("exit 3")) == 3
        supervisor.kill()
    assert not asked.exists()


def test_an_attempt_that_is_over_ends_here_too(attempt: AttemptDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor did not get through to this node: its link was cut."""
    (attempt.root / "attempt.json").write_text('{"ended": "2026-01-01T00:00:00Z"}')
    assert orphaned(attempt, monkeypatch) == 128 + signal.SIGKILL


def test_only_light_modules_are_imported() -> None:
    script = (
        "import sys; before = set(sys.modules); import glmforge_ops.jobs.ranks.__main__ as m;"
        "print(*sorted({n.partition('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert set(done.stdout.split()) == {"glmforge", "glmforge_ops", "psutil"}
