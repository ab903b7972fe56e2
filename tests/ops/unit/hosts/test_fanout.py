"""Asking many machines: `ssh` is a program of the test's own that does what the name of the host says."""

import os
from pathlib import Path

import pytest

from glmforge.runtime.ssh import Ssh
from glmforge_ops.hosts.fanout import MAX_OUTPUT, Answer, Fanout, Outcome
from helpers.unwoken import run_program

# Options end at "--"; then come the host and the command.
_PROGRAM = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
host=$2
shift 2
case $host in
gone*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255 ;;
changed*) echo "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @" >&2; echo "Host key verification failed." >&2
  exit 255 ;;
hung*) exec sleep 1000 ;;
esac
exec sh -c "$*"
"""


@pytest.fixture
def fanout(tmp_path: Path) -> Fanout:
    program = tmp_path / "ssh"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    return Fanout(Ssh((str(program),)), at_once=16)


def test_every_host_answers_for_itself(fanout: Fanout) -> None:
    hosts = ["a", "gone", "b", "changed", "fails", "hung"]
    came: list[str] = []

    def script(host: str) -> str:
        return "echo it is broken >&2; exit 3" if host == "fails" else f"cat; echo I am {host}"

    answers = fanout.run(
        hosts, script, timeout_s=5, stdin=b"hello\n", on_answer=lambda answer: came.append(answer.host)
    )
    assert list(answers) == hosts
    assert sorted(came) == sorted(hosts)
    assert [answer.outcome for answer in answers.values()] == [
        Outcome.DONE,
        Outcome.UNREACHABLE,
        Outcome.DONE,
        Outcome.UNREACHABLE,
        Outcome.FAILED,
        Outcome.TIMED_OUT,
    ]
    assert answers["b"].stdout == b"hello\nI am b\n"
    assert "no route" in answers["gone"].reason
    assert "not the one that is known" in answers["changed"].reason
    assert (answers["fails"].status, answers["fails"].reason) == (3, "it is broken")
    assert answers["hung"].status is None
    assert "no answer within 5 s" in answers["hung"].reason


def test_this_machine_needs_no_ssh_and_a_missing_one_is_named() -> None:
    answers = Fanout(Ssh(("no-such-program",))).run(["localhost", "a"], "echo here", timeout_s=20)
    assert (answers["localhost"].outcome, answers["localhost"].stdout) == (Outcome.DONE, b"here\n")
    assert answers["a"].outcome is Outcome.FAILED
    assert "no-such-program" in answers["a"].reason
    assert "install" in answers["a"].fix


def test_output_is_bounded(fanout: Fanout) -> None:
    answer = fanout.run(["a"], f"head -c {MAX_OUTPUT + 1000} /dev/zero; echo {'x' * 9000} >&2", timeout_s=60)["a"]
    assert (answer.outcome, len(answer.stdout)) == (Outcome.DONE, MAX_OUTPUT)


def test_a_caller_that_gives_up_ends_the_rest(fanout: Fanout) -> None:
    def give_up(answer: Answer) -> None:
        raise ValueError(answer.host)

    with pytest.raises(ValueError, match=r"^a$"):
        fanout.run(["a", "hung1", "hung2", "hung3"], "echo", timeout_s=1000, on_answer=give_up)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert not [pid for pid in children if "sleep" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_nothing_of_a_name_or_a_script_reaches_another_shell() -> None:
    command = Ssh().to_shell("node1", "echo 'a b'; $(reboot)")
    at = command.index("--")
    assert command[at + 1 :] == ["node1", "sh -c 'echo '\"'\"'a b'\"'\"'; $(reboot)'"]
    assert Ssh().to("node1", "echo", "$(reboot)", "a b")[-1] == "sh -c 'echo '\"'\"'$(reboot)'\"'\"' '\"'\"'a b'\"'\"''"
    for option in ("BatchMode=yes", "StrictHostKeyChecking=yes", "ClearAllForwardings=yes"):
        assert option in command[:at]


def test_input_stays_open_only_where_a_script_is_to_learn_that_nobody_waits(fanout: Fanout) -> None:
    script = "head -c 3; read -r rest && echo more || echo end"
    assert fanout.run(["a"], script, 60, b"abc")["a"].stdout == b"abcend\n"
    assert fanout.run(["a"], script, 1, b"abc", hold=True)["a"].outcome is Outcome.TIMED_OUT


def test_much_goes_in_while_much_comes_out(fanout: Fanout) -> None:
    sent = bytes(range(256)) * 8000
    assert fanout.run(["a"], "cat", 60, sent)["a"].stdout == sent
    assert fanout.run(["a"], "exit 0", 60, sent)["a"].is_done  # it need not be read


_INTERRUPTED = """
import signal, threading
from glmforge_ops.hosts.fanout import Fanout

threading.Thread(target=signal_without_waking, args=(signal.SIGINT,)).start()
try:
    Fanout().run(["localhost"], "sleep 100", timeout_s=100)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_does_not_wake_the_main_thread_ends_the_questions(tmp_path: Path) -> None:
    done = run_program(_INTERRUPTED, tmp_path)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
